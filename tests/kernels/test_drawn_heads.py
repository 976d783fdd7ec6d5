"""The product that computes the logits of a step that draws tokens keeps the largest of each row for `draw`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.sampling import settings_of
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.select.registry import calls_of, head_calls_of
from bringup.compile.kernels.select.sampling import (
    ADVANCED,
    DRAWN,
    LOGITS,
    MOST_SEQUENCES,
    sampling_calls,
    slots_of,
)
from bringup.compile.kernels.select.tensors import COUNTERS
from bringup.compile.program.program import Draw
from bringup.compile.schedule.graph.op_graph import OpGraph, View, whole
from tests.kernels.emulated import Emulated
from tests.kernels.graphs import NUMPY, Function
from tests.kernels.quant_weights import CASES, Weight
from tests.kernels.tasks.products import in_float8
from tests.kernels.test_fp8 import Product
from tests.kernels.test_sampling import by_definition

CHANNELS = 40
GREEDY = Draw(0.0, 1.0, 0.0)


def drawn(
    f: Function, draws: Sequence[Draw], card: str = "sm_90", result: str = "out"
) -> tuple[list[int], np.ndarray, list[str]]:
    """The tokens, the logits in float32, and the kernels. The logits are those of any other step."""
    graph = f.graph(result)
    logits, (group,) = graph.buffers[result], graph.groups
    rows, vocab = logits.shape
    last, plain = head_calls_of(graph, group, card, result), calls_of(graph, group, card)
    assert last
    assert plain
    calls = [*last, *sampling_calls(logits.dtype, rows, vocab, 1, filled=True)]
    compiled = compile_kernels([call.kernel for call in (*calls, *plain)], card, default_store())
    fields = {name: np.ones(rows, np.int64) for name in ADVANCED}
    given = {**f.started(), **settings_of(draws, rows), **fields, DRAWN: np.zeros(rows, np.int64)}
    machine, other = Emulated(given, max(call.scratch for call in calls)), Emulated(f.started())
    machine.places[LOGITS] = machine.places[result]
    for call in calls:
        machine.run(call, compiled[call.kernel], is_counting=call is not calls[-1])
    for call in plain:
        other.run(call, compiled[call.kernel])
    found = machine.read(result).astype(np.float32)
    assert np.array_equal(found, other.read(result).astype(np.float32), equal_nan=True)
    return machine.read(DRAWN).tolist(), found, [call.kernel.stem for call in calls]


def product(
    rows: int, vocab: int, dtype: str, name: str = "out", *, x: np.ndarray | None = None, w: np.ndarray | None = None
) -> Function:
    """A product, of random matrices unless they are given."""
    f = Function()
    numbers = f.random.standard_normal((rows, CHANNELS)) if x is None else x
    matrix = f.random.standard_normal((vocab, CHANNELS)) if w is None else w
    given = f.array("x", numbers.astype(NUMPY[dtype]), dtype, "value")
    weight = f.array("weight", matrix.astype(NUMPY[dtype]), dtype)
    f.node("bringup.linear.default", {name: ((rows, vocab), dtype)}, x=given, weight=weight, bias=None)
    return f


def capped(rows: int, vocab: int, dtype: str) -> Function:
    """Logits that are limited by tanh after the product, as in Gemma 2."""
    f, shape = product(rows, vocab, dtype, "y"), ((rows, vocab), dtype)
    y = f.node("aten.div.Tensor", {"small": shape}, self=whole(f.buffers["y"]), other=0.5)
    y = f.node("aten.tanh.default", {"bounded": shape}, self=y)
    f.node("aten.mul.Tensor", {"out": shape}, self=y, other=0.5)
    return f


def packed(rows: int, vocab: int, dtype: str) -> Function:
    """A matrix of 4-bit codes."""
    f = Function()
    x = f.given("x", (rows, 64), dtype, "value")
    weight = Weight(f, "weight", CASES["int4"], (vocab, 64), dtype)
    shape = {"out": ((rows, vocab), dtype)}
    f.node("bringup.quant_linear.default", shape, x=x, bias=None, **weight.arguments)
    return f


def in_fp8(rows: int, vocab: int, dtype: str) -> Function:
    """Rows and a matrix in float8."""
    each = Product(rows, 128, vocab, (128, 128), dtype)
    each.times("out")
    return each.f


# Each kernel once.
OFTEN = ("one row, bfloat16", "several rows, capped", "one row, packed", "several rows, packed", "float8")
CASES_OF: dict[str, tuple[Callable[[], Function], str]] = {
    "one row, float32": (lambda: product(1, 70, "float32"), "linear"),
    "one row, bfloat16": (lambda: product(1, 301, "bfloat16"), "linear"),
    "several rows, float32": (lambda: product(5, 70, "float32"), "linear_tile"),
    "several rows, bfloat16": (lambda: product(20, 301, "bfloat16"), "linear_tile"),
    "one row, capped": (lambda: capped(1, 301, "bfloat16"), "linear"),
    "several rows, capped": (lambda: capped(3, 301, "bfloat16"), "linear_tile"),
    "one row, packed": (lambda: packed(1, 80, "bfloat16"), "quant.quant_linear"),
    "several rows, packed": (lambda: packed(20, 80, "float32"), "quant.quant_linear_tile"),
    "float8": (lambda: in_fp8(3, 200, "bfloat16"), "quant.fp8_linear"),
}


@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in CASES_OF]
)
def test_the_likeliest_token_of_each_row(case: str) -> None:
    """In 16 bits many logits are equal: the first of them. No launch is between the product and `draw`."""
    make, stem = CASES_OF[case]
    f = make()
    tokens, logits, stems = drawn(f, [GREEDY] * f.buffers["out"].shape[0])
    assert stems == [stem, "draw"]
    assert np.isfinite(logits).all()
    assert tokens == logits.argmax(1).tolist()


@pytest.mark.parametrize("rows", [1, 3])
def test_random_tokens(rows: int) -> None:
    draws = [Draw(1.0, 0.9, 0.37), Draw(0.7, 1.0, 0.81, 5), Draw(2.0, 0.8, 0.12, 9)][:rows]
    tokens, logits, _ = drawn(product(rows, 301, "float32"), draws)
    assert tokens == [by_definition(row, draw) for row, draw in zip(logits, draws, strict=True)]


@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (1, "bfloat16"), (4, "float32"), (4, "bfloat16")])
def test_equal_logits_give_the_lowest_token(rows: int, dtype: str) -> None:
    """In one program and in several: the likeliest token's column is also at three other places."""
    random = np.random.default_rng(5)
    x, w = random.standard_normal((1, CHANNELS)), random.standard_normal((301, CHANNELS))
    best = int((w @ x[0]).argmax())
    w[[17, 18, 130, 300]] = w[best]
    tokens, logits, _ = drawn(product(rows, 301, dtype, x=np.repeat(x, rows, 0), w=w), [GREEDY] * rows)
    assert (logits[:, [17, 18, 130, 300]] == logits.max(1)[:, None]).all()
    assert tokens == [min(17, best)] * rows


@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (3, "bfloat16")])
def test_negative_logits(rows: int, dtype: str) -> None:
    """Lanes past the vocabulary have sums of 0, which is more than every logit."""
    random = np.random.default_rng(6)
    x, w = np.abs(random.standard_normal((rows, CHANNELS))), -np.abs(random.standard_normal((37, CHANNELS)))
    tokens, logits, _ = drawn(product(rows, 37, dtype, x=x, w=w), [GREEDY] * rows)
    assert logits.max() < 0
    assert tokens == logits.argmax(1).tolist()


@pytest.mark.parametrize("rows", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_logits_without_a_largest(rows: int) -> None:
    """NaN anywhere; an infinity; all -infinity; zeros of both signs; -infinity for some tokens."""
    results: list[int] = []
    columns = {"nan": np.nan, "inf": np.inf, "all": -np.inf, "zeros": -0.0, "some": -np.inf}
    matrices = {name: np.full((70, CHANNELS), 0.5) for name in columns}
    for name, value in columns.items():
        if name == "all":
            matrices[name][:] = value
        elif name == "zeros":
            matrices[name][:] = 0.0
            matrices[name][:9] = value
        else:
            matrices[name][33] = value
    for matrix in matrices.values():
        x = np.ones((rows, CHANNELS))
        tokens, _, _ = drawn(product(rows, 70, "float32", x=x, w=matrix), [GREEDY] * rows)
        assert len(set(tokens)) == 1
        results.append(tokens[0])
    assert results == [-1, -2, -2, 0, 0]


def test_what_keeps_no_largest() -> None:
    """A result that the group does not store, a group without a product, rows that are rounded to float8."""

    def of(graph: OpGraph, name: str) -> object:
        return head_calls_of(graph, graph.groups[0], "sm_90", name)

    f = product(2, 70, "float32")
    assert of(f.graph("out"), "out")
    assert of(f.graph("out"), "x") is None
    alone = Function()
    y = alone.given("y", (2, 70), "float32", "value")
    alone.node("aten.mul.Tensor", {"out": ((2, 70), "float32")}, self=y, other=2.0)
    assert of(alone.graph("out"), "out") is None
    assert calls_of(alone.graph("out"), alone.graph("out").groups[0], "sm_90")
    rounded = in_float8(3, "bfloat16").graph
    assert isinstance(rounded.results[0], View)
    assert of(rounded, "out.codes") is None


def test_slots_of_most_sequences() -> None:
    """They are counters, of which there are so many."""
    assert slots_of(MOST_SEQUENCES)[1] == COUNTERS
    with pytest.raises(AssertionError):
        slots_of(MOST_SEQUENCES + 1)


def test_settings_and_fields_are_fetched_before_the_wait() -> None:
    """Four settings, three fields and the row of the block table. Slots and logits are read after it."""
    (call,) = sampling_calls("float32", 1, 300, 4, filled=True)
    text = compile_kernels([call.kernel], "sm_90", default_store())[call.kernel].assembly
    before, wait, after = text.partition("griddepcontrol.wait")
    assert wait
    assert before.count("ld.global") == 8
    assert "ld.global" in after
    assert "st.global" not in before
