"""What a review found: each of these once passed silently or came out wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bringup.adapters.algebra.expr import S, cat, stack
from bringup.adapters.algebra.values import cast, scale
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.coverage import half_used
from bringup.adapters.planning.plan import make_plan
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import Module, Param
from tests.adapters.layouts import declare

FLOAT = np.float32


def planned(table: Adapter, tensors: dict[str, np.ndarray], **params: Param):
    checkpoint = dict_checkpoint(tensors, {})
    return make_plan(declare(**params), table, checkpoint.headers), checkpoint


@pytest.mark.parametrize(
    "expr",
    [
        stack(S("e.{E}"), over="E", n=2),
        stack(scale(S("e.{E}"), 2.0), over="E", n=2),
    ],
)
def test_sources_without_axes_are_never_reshaped(expr):
    """Stored [in, out], declared [out, in]: the sizes are there in another order, and nobody said which is which."""
    table = Adapter("test", defaults=("out in",))
    table["e"] = expr
    tensors = {f"e.{i}": np.arange(20, dtype=FLOAT).reshape(4, 5) for i in range(2)}
    plan, _ = planned(table, tensors, e=Param("e out:f in:m", e=2, f=5, m=4))
    assert [problem.code for problem in plan.problems] == ["BU106"]


def test_part_of_a_value_is_not_the_whole():
    table = Adapter("test")
    table["q"] = scale(S("qk", "n m", n=6), 2.0).split("n", 2, 4)[0]
    plan, _ = planned(table, {"qk": np.ones((6, 3), FLOAT)}, q=Param("n m", n=2, m=3))
    assert [(entry.declared.name, round(share, 3)) for entry, _, share in half_used(plan)] == [("q", 0.333)]


@pytest.mark.parametrize(("read", "shares"), [((0, 1, 2), []), ((2, 1), [0.833]), ((0,), [0.167])])
def test_parts_of_a_value_that_one_rule_reads(read: tuple[int, ...], shares: list[float]):
    """The rule names the value once for each part; together they are the parts of one value."""
    parts = scale(S("qkv", "n m", n=6), 2.0).split("n", 1, 2, 3)
    table = Adapter("test")
    table["w"] = cat(*(parts[index] for index in read), axis="n")
    rows = sum((1, 2, 3)[index] for index in read)
    plan, _ = planned(table, {"qkv": np.ones((6, 3), FLOAT)}, w=Param("n m", n=rows, m=3))
    assert [round(share, 3) for _, _, share in half_used(plan)] == shares


def test_bits_widened_into_a_value_node():
    wanted = np.random.default_rng(0).normal(size=1000).astype(np.float16)
    table = Adapter("test")
    table["w"] = cast(S("w", "n b", b=2).bits("float16"), "float32")
    plan, checkpoint = planned(table, {"w": wanted.view(np.uint8).reshape(1000, 2)}, w=Param("n", n=1000))
    assert np.array_equal(materialise(plan, checkpoint)["w"], wanted.astype(FLOAT))


def test_bits_widened_into_a_parameter():
    wanted = np.random.default_rng(0).normal(size=6).astype(FLOAT)
    table = Adapter("test")
    table["w"] = S("w", "n b", b=4).bits("float32")
    plan, checkpoint = planned(table, {"w": wanted.view(np.uint8).reshape(6, 4)}, w=Param("n", n=6))
    assert plan.problems == []
    assert np.array_equal(materialise(plan, checkpoint)["w"], wanted)


def test_bits_read_as_another_type_are_not_mapped_as_they_lie():
    stored = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    table = Adapter("test")
    table["w"] = S("w", "n").bits("float16")
    plan, checkpoint = planned(table, {"w": stored}, w=Param("n", n=2, dtype="float16"))
    assert np.array_equal(materialise(plan, checkpoint)["w"], stored.view(np.float16))


def test_four_bit_elements_that_move():
    stored = np.arange(6, dtype=np.int8).astype(ml_dtypes.int4).reshape(2, 3)
    table = Adapter("test")
    table["w"] = S("w", "b a")
    plan, checkpoint = planned(table, {"w": stored}, w=Param("a b", a=3, b=2, dtype="int4"))
    assert np.array_equal(materialise(plan, checkpoint)["w"], stored.T)


def test_floats_of_two_widths_side_by_side_keep_their_values():
    table = Adapter("test")
    table["w"] = scale(cat(S("a", "k", k=2), S("b", "k", k=2), axis="k"), 1.0).mv("k -> n:k")
    tensors = {"a": np.array([1, 2], np.float16), "b": np.array([1e6, 1.0001], FLOAT)}
    plan, checkpoint = planned(table, tensors, w=Param("n", n=4))
    assert np.array_equal(materialise(plan, checkpoint)["w"], np.array([1, 2, 1e6, 1.0001], FLOAT))


def test_a_setting_in_a_list_makes_another_kind():
    class Layer(Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factors = [factor]

    assert Layer(1.0).structural_key() != Layer(2.0).structural_key()
    assert Layer(1.0).structural_key() == Layer(1.0).structural_key()


@pytest.mark.parametrize("held", [[Param("a", a=1)], (Module(),), {"x": Param("a", a=1)}, [Module(), 3]])
def test_parts_that_names_cannot_reach_are_refused(held):
    module = Module()
    module.parts = held
    with pytest.raises(TypeError, match="`parts`"):
        list(module.children())


@pytest.mark.parametrize(
    ("axes", "cut", "shape"),
    [
        ("out:(r (q:(h d) | k:(h d))) in:m", ("h",), (12, 4)),
        ("out:(q:(h d) | k:(h d)) in:m", ("h",), (6, 4)),
    ],
)
def test_slices_reach_every_place_of_an_axis(axes, cut, shape):
    leaf = Param(axes, r=2, h=2, d=3, m=4) if " r " in f" {axes}".replace("(", " ") else Param(axes, h=2, d=3, m=4)
    rows = leaf.axes[0].size
    array = np.arange(rows * 4, dtype=FLOAT).reshape(rows, 4)
    table = Adapter("test")
    table["w"] = S("w", axes)
    plan, checkpoint = planned(table, {"w": array}, w=leaf)
    part = materialise(slice_plan(plan, cut, 1, 2), checkpoint)["w"]
    assert part.shape == shape
    assert np.array_equal(part, array.reshape(-1, 2, 3, 4)[:, 1].reshape(shape))


@pytest.mark.parametrize("axis", ["out", "hh"])
def test_an_axis_that_cannot_be_divided_is_refused(axis):
    table = Adapter("test", defaults=("out in",))
    table["w"] = S("w")
    plan, _ = planned(table, {"w": np.ones((6, 4), FLOAT)}, w=Param("out:(h d) in:m", h=2, d=3, m=4))
    with pytest.raises(BringupError, match="BU130"):
        slice_plan(plan, (axis,), 0, 2)


def layers(*names: str) -> dict[str, np.ndarray]:
    return {name: np.ones(2, FLOAT) for name in names}


def test_a_drop_counts_in_each_layer():
    table = Adapter("test")
    table["h.{L}.w"] = S("h.{L}.w", "a")
    table.drop("h.{L}.{x:**}", why="masks", expect=(0, 1))
    tensors = layers("h.0.w", "h.1.w", "h.0.mask", "h.1.mask", "h.1.more")
    plan, _ = planned(table, tensors, h__0__w=Param("a", a=2), h__1__w=Param("a", a=2))
    assert [(p.code, p.actual) for p in plan.problems] == [("BU111", "2")]


def test_a_drop_that_misses_a_layer_is_reported():
    table = Adapter("test")
    table["h.{L}.w"] = S("h.{L}.w", "a")
    table.drop("h.{L}.mask", why="masks", expect=(1, 1))
    tensors = layers("h.0.w", "h.1.w", "h.0.mask")
    plan, _ = planned(table, tensors, h__0__w=Param("a", a=2), h__1__w=Param("a", a=2))
    assert [(p.code, p.actual) for p in plan.problems] == [("BU111", "0")]


def test_a_drop_that_misses_every_layer_is_reported_once():
    table = Adapter("test")
    table["h.{L}.w"] = S("h.{L}.w", "a")
    table.drop("h.{L}.mask", why="masks", expect=(1, 1))
    plan, _ = planned(table, layers("h.0.w", "h.1.w"), h__0__w=Param("a", a=2), h__1__w=Param("a", a=2))
    assert [p.message for p in plan.problems] == [
        "drop `h.{L}.mask` (masks): expected 1, found 0 tensors for L=0 and 1 more"
    ]


def test_a_tie_that_cannot_be_compared_is_a_finding_and_no_crash():
    table = Adapter("test")
    table["head"] = tied(S("head"), S("wte", "a b"), when=True)
    tensors = {"head": np.ones((3, 3), FLOAT), "wte": np.ones((3, 3), FLOAT)}
    plan, _ = planned(table, tensors, head=Param("a b", a=3, b=3))
    assert [problem.code for problem in plan.problems] == ["BU106"]
