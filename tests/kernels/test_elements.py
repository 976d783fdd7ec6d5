"""Operations on elements and rows, whose code is generated, on the emulator against torch."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.kernels.select import elements
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.schedule.graph.op_graph import DType, View
from bringup.diagnostics import BringupError
from tests.kernels.graphs import Function, far

FLOAT = "float32"


def near(f: Function, *names: str, capability: str = "sm_90", within: float = 2e-6) -> None:
    """Whether the kernel's results are torch's."""
    machine, expected = f.emulated(f.graph(*names), capability), f.expected()
    for name in names:
        assert far(machine.read(name), expected[name]) <= within, name


def test_look_ups_of_several_tables() -> None:
    """Embedding with its scale, and the rows of two more tables: one launch, a range of programs for each."""
    f, rows = Function(), 5
    tokens = f.array("step:tokens", np.array([3, 0, 40, 3, 7]), "int64", "step")
    table, cos = f.given("table", (41, 37)), f.given("cos", (9, 3))
    taken = f.node("aten.index.Tensor", {"e": ((rows, 37), FLOAT)}, self=table, indices=(tokens,))
    f.node("aten.mul.Tensor", {"scaled": ((rows, 37), FLOAT)}, self=taken, other=6.0)
    last = f.array("step:last", np.array([4, 1]), "int64", "step")
    f.node("aten.index_select.default", {"c": ((2, 3), FLOAT)}, self=cos, dim=0, index=last)
    near(f, "scaled", "c")


def test_strided_and_broadcast_views() -> None:
    f = Function()
    a, b = f.given("a", (6, 10), kind="value"), f.given("b", (4,), kind="value")
    part = View(a.buffer, (3, 2, 4), (20, 5, 1), 1)  # of rows 0, 2 and 4: two parts that lie 5 apart
    both = f.node("aten.add.Tensor", {"s": ((3, 2, 4), FLOAT)}, self=part, other=b, alpha=2)
    turned = View(both.buffer, (4, 6), (1, 4), 0)
    f.node("aten.clone.default", {"t": ((4, 6), FLOAT)}, self=turned, memory_format=None)
    near(f, "t", "s")


def test_numbers_of_one_element() -> None:
    f = Function()
    count = f.node(
        "aten.arange.default",
        {"n": ((1,), "int64")},
        end=1,
        **dict.fromkeys(("dtype", "layout", "device", "pin_memory")),
    )
    x = f.array("x", np.array([0, 3]), "int64", "value")
    f.node("aten.eq.Tensor", {"same": ((2, 1), "bool")}, self=View(x.buffer, (2, 1), (1, 1)), other=count)
    near(f, "n", "same", within=0)


def test_columns_selected_by_number_or_minus_infinity() -> None:
    """Logits of a vocabulary of which some tokens have none."""
    f = Function()
    x = f.given("x", (3, 5), kind="value")
    numbers = f.array("numbers", np.array([2, -1, 0, 4, -1, 4, 1]), "int64", "value")
    rows = f.node("aten.clamp.default", {"rows": ((7,), "int64")}, self=numbers, min=0, max=None)
    taken = f.node("aten.index_select.default", {"taken": ((3, 7), FLOAT)}, self=x, dim=1, index=rows)
    never = f.node("aten.lt.Scalar", {"never": ((7,), "bool")}, self=numbers, other=0)
    options = dict.fromkeys(("dtype", "layout", "device", "pin_memory"))
    least = f.node("aten.scalar_tensor.default", {"least": ((), FLOAT)}, s=float("-inf"), **options)
    f.node("aten.where.self", {"logits": ((3, 7), FLOAT)}, condition=never, self=least, other=taken)
    machine, expected = f.emulated(f.graph("logits"), "sm_90"), f.expected()["logits"]
    assert (machine.read("logits") == np.asarray(expected)).all()
    assert np.isneginf(machine.read("logits")).sum() == 6


def test_larger_blocks_of_many_elements(monkeypatch) -> None:
    """The programs of two results, the first of which ends within a block."""
    monkeypatch.setattr(elements, "MANY", 1)
    f = Function()
    a, b = f.given("a", (3, 1000), kind="value"), f.given("b", (2, 1500), kind="value")
    f.node("aten.mul.Tensor", {"x": ((3, 1000), FLOAT)}, self=a, other=3.0)
    f.node("aten.mul.Tensor", {"y": ((2, 1500), FLOAT)}, self=b, other=5.0)
    graph = f.graph("x", "y")
    (call,) = calls_of(graph, graph.groups[0], "sm_90") or ()
    assert call.grid == (4, 1, 1)
    near(f, "x", "y")


@pytest.mark.parametrize("capability", ["sm_80", "sm_90"])
def test_powers(capability: str) -> None:
    """Of positive numbers; of negative ones and 0, with integers as exponents; of one number with several exponents."""
    f, exponent = Function(), np.float32(32 / 30)
    x, y = np.geomspace(1e-3, 1e6, 40, dtype=np.float32).reshape(5, 8), np.linspace(-3, 3, 8, dtype=np.float32)
    signed = np.array([-7.0, -1.5, -1.0, 0.0, 2.0], np.float32)
    given = {name: f.array(name, array, FLOAT, "value") for name, array in (("x", x), ("y", y), ("signed", signed))}
    f.node("aten.pow.Tensor_Tensor", {"both": ((5, 8), FLOAT)}, self=given["x"], exponent=given["y"])
    f.node("aten.pow.Tensor_Scalar", {"fixed": ((5, 8), FLOAT)}, self=given["x"], exponent=float(exponent))
    f.node("aten.pow.Scalar", {"bases": ((8,), FLOAT)}, self=10_000, exponent=given["y"])
    f.node("aten.pow.Tensor_Scalar", {"fifth": ((5,), FLOAT)}, self=given["signed"], exponent=5)
    machine = f.emulated(f.graph("both", "fixed", "bases", "fifth"), capability)
    x, y, signed, exponent = (each.astype(np.float64) for each in (x, y, signed, exponent))
    expected = {"both": x**y, "fixed": x**exponent, "bases": 10_000.0**y, "fifth": signed**5}
    for name, values in expected.items():
        np.testing.assert_allclose(machine.read(name), values, rtol=5e-7, err_msg=name)  # 4 units in the last place


def test_integers_comparisons_and_choices() -> None:
    f = Function()
    x = f.array("x", np.arange(-20, 20).reshape(5, 8), "int64", "value")
    large = f.node("aten.gt.Scalar", {"g": ((5, 8), "bool")}, self=x, other=3)
    small = f.node("aten.lt.Scalar", {"l": ((5, 8), "bool")}, self=x, other=-4)
    either = f.node("aten.bitwise_or.Tensor", {"e": ((5, 8), "bool")}, self=large, other=small)
    wide = f.node("aten.to.dtype", {"f": ((5, 8), FLOAT)}, self=x, dtype=DType(FLOAT), non_blocking=False, copy=False,
                  memory_format=None)  # fmt: skip
    f.node("aten.where.self", {"w": ((5, 8), FLOAT)}, condition=either, self=wide, other=f.given("o", (8,)))
    near(f, "w", "e")


def test_remainders_and_choices_of_a_number() -> None:
    """A remainder has the sign of what is divided by."""
    f = Function()
    x = f.array("x", np.arange(-20, 20).reshape(5, 8), "int64", "value")
    rest = f.node("aten.remainder.Scalar", {"r": ((5, 8), "int64")}, self=x, other=7)
    f.node("aten.remainder.Scalar", {"n": ((5, 8), "int64")}, self=x, other=-6)
    small = f.node("aten.lt.Scalar", {"l": ((5, 8), "bool")}, self=x, other=-4)
    f.node("aten.where.ScalarSelf", {"w": ((5, 8), "int64")}, condition=small, self=99, other=rest)
    wide = f.given("y", (5, 8), kind="value")
    f.node("aten.remainder.Scalar", {"q": ((5, 8), FLOAT)}, self=wide, other=0.75)
    near(f, "w", "n", "q")


def test_parts_side_by_side_and_an_empty_axis_of_one() -> None:
    f = Function()
    a, b = f.given("a", (3, 1, 5), kind="value"), f.given("b", (3, 1, 2), kind="value")
    f.node("aten.cat.default", {"c": ((3, 1, 7), FLOAT)}, tensors=(a, b), dim=-1)
    near(f, "c")


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_and_a_cache_without_a_product(interleaved: bool) -> None:
    f, rows = Function(), 3
    x = f.given("x", (rows, 2, 10), kind="value")
    cos, sin = (f.given(name, (rows, 3), kind="value") for name in ("cos", "sin"))
    slots = f.array("step:slots", np.array([8, 0, 5]), "int64", "step")
    cache = f.array("k", np.zeros((9, 2, 10), np.float16), "float16", "state")
    shape = {"r": ((rows, 2, 10), FLOAT)}
    turned = f.node("bringup.rope.default", shape, x_NHK=x, cos_NC=cos, sin_NC=sin, interleaved=interleaved)
    f.node("bringup.write_cache.default", {}, cache_SGK=cache, slots_N=slots, rows_NGK=turned)
    f.arrays["x"][0, 0, 9] = 1e6  # beyond float16: its largest number is stored
    machine, expected = f.emulated(f.graph("r"), "sm_90"), f.expected(wide=False)
    assert far(machine.read("r"), expected["r"]) < 1e-6
    assert np.array_equal(np.asarray(machine.read("k"), np.float64), expected["k"])
    assert expected["k"].max() == 65504


@pytest.mark.parametrize(("dtype", "within"), [("float32", 2e-6), ("bfloat16", 1.2e-2)])
@pytest.mark.parametrize("width", [37, 1500])
def test_norms_of_rows(width: int, dtype: str, within: float) -> None:
    f, rows = Function(), 5
    x, r = (f.given(name, (rows, width), dtype, "value") for name in "xr")
    f.arrays["x"][2] = 0
    scale, shift = (f.given(name, (width,), dtype) for name in ("scale", "shift"))
    one = f.node("bringup.layer_norm.default", {"n": ((rows, width), dtype)}, x=x, weight=scale, bias=shift, eps=1e-5)
    f.node("aten.add.Tensor", {"sum": ((rows, width), dtype)}, self=one, other=r, alpha=1)
    near(f, "sum", within=within)


def test_routing_of_a_mixture() -> None:
    """Scores, the best groups, the best experts with their shares: one launch."""
    f, rows, experts, count = Function(), 7, 12, 3
    scores = f.given("s", (rows, experts), kind="value")
    shares = f.node("aten.softmax.int", {"p": ((rows, experts), FLOAT)}, self=scores, dim=-1, dtype=None)
    best = f.node("bringup.keep_best_groups.default", {"k": ((rows, experts), FLOAT)}, scores_NE=shares, groups=4,
                  topk_groups=2, best=2)  # fmt: skip
    shapes = {"chosen": ((rows, count), "int64"), "weights": ((rows, count), FLOAT)}
    f.node("bringup.top_experts.default", shapes, scores_NE=shares, count=count, by_NE=best)
    weights = View("weights", (rows, count), (count, 1), 0)
    total = f.node("aten.sum.dim_IntList", {"t": ((rows, 1), FLOAT)}, self=weights, dim=(-1,), keepdim=True, dtype=None)
    f.node("aten.div.Tensor", {"d": ((rows, count), FLOAT)}, self=weights, other=total)
    near(f, "chosen", "d")


def test_tokens_sorted_by_expert() -> None:
    f, tokens, choices, experts, rows = Function(), 30, 2, 5, 12
    chosen = f.array("chosen", f.random.integers(0, experts, (tokens, choices)), "int64", "value")
    blocks = (tokens * choices + experts * (rows - 1)) // rows
    shapes = {"expert": ((blocks,), "int64"), "row": ((tokens, choices), "int64")}
    f.node("bringup.rows_of_experts.default", shapes, selected_NK=chosen, experts=experts, R=rows)
    near(f, "expert", "row", within=0)
    g = Function()
    row = g.array("row", f.expected()["row"].astype(np.int64), "int64", "value")
    expert = g.array("expert", f.expected()["expert"].astype(np.int64), "int64", "value")
    x = g.given("x", (tokens, 37), kind="value")
    g.node("bringup.to_blocks.default", {"b": ((blocks, rows, 37), FLOAT)}, x_Nm=x, blocks_expert_B=expert,
           blocks_row_NK=row, blocks_rows=rows)  # fmt: skip
    near(g, "b", within=0)


def test_a_group_that_no_kernel_takes_is_split() -> None:
    f = Function()
    x = f.given("x", (4, 8), kind="value")
    total = f.node("aten.sum.dim_IntList", {"t": ((4, 1), FLOAT)}, self=x, dim=(-1,), keepdim=True, dtype=None)
    turned = View(total.buffer, (1, 4), (1, 1), 0)
    f.node("aten.mul.Tensor", {"m": ((4, 4), FLOAT)}, self=turned, other=turned)
    graph = split(f.graph("m"), "sm_90")
    assert [group.name for group in graph.groups] == ["sum", "mul"]


def test_an_operation_that_no_kernel_takes() -> None:
    f = Function()
    f.node("aten.linalg_inv.default", {"y": ((4, 4), FLOAT)}, A=f.given("x", (4, 4)))
    with pytest.raises(BringupError, match="BU504"):
        split(f.graph("y"), "sm_90")
