"""Random expressions against numpy; sub-byte repacking; padding; value nodes."""

from __future__ import annotations

import string

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.algebra.expr import Expr, S, cat, packed, stack
from bringup.adapters.algebra.values import cast, dequant, fn, quant, scale
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.apply.shard import clip
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import make_plan
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import AxesError
from bringup.graphs.core.module import Param
from tests.adapters.layouts import declare

NAMES = string.ascii_lowercase


def plan_for(table: Adapter, tensors: dict[str, np.ndarray], **params: Param):
    checkpoint = dict_checkpoint(tensors, {})
    plan = make_plan(declare(**params), table, checkpoint.headers)
    return plan, checkpoint


def run(expr: Expr, tensors: dict[str, np.ndarray], shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """What a rule makes of tensors; its axes come out as a, b, c, …"""
    axes = " ".join(NAMES[: len(shape)])
    table = Adapter("test")
    table["x"] = expr.mv(f"{axes} -> {axes}")
    plan, checkpoint = plan_for(table, tensors, x=Param(axes, dtype=dtype, **dict(zip(NAMES, shape, strict=False))))
    assert plan.problems == []
    return materialise(plan, checkpoint)["x"]


class Random:
    """Builds an expression and the numpy array it stands for, step by step."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = lambda strategy: data.draw(strategy)
        self.tensors: dict[str, np.ndarray] = {}

    def source(self) -> tuple[Expr, np.ndarray]:
        shape = tuple(self.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
        name = f"t{len(self.tensors)}"
        start = sum(a.size for a in self.tensors.values())
        array = np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)
        self.tensors[name] = array
        return S(name), array

    def step(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        move = self.draw(st.sampled_from([self.mv, self.part, self.at, self.pad, self.join]))
        return move(expr, array)

    def mv(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        before, factors, sizes = [], [], {}
        for size in array.shape:
            inner = self.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            pair = NAMES[len(factors)], NAMES[len(factors) + 1]
            before.append(f"({' '.join(pair)})")
            sizes |= {pair[0]: size // inner, pair[1]: inner}
            factors += pair
        order = self.draw(st.permutations(factors))
        cut = self.draw(st.integers(max(1, len(order) - 3), len(order)))
        after = [f"({' '.join(order[:cut])})", *order[cut:]]
        moved = array.reshape([sizes[n] for n in factors]).transpose([factors.index(n) for n in order])
        shape = (int(np.prod(moved.shape[:cut])), *moved.shape[cut:])
        return expr.mv(f"{' '.join(before)} -> {' '.join(after)}", **sizes), moved.reshape(shape)

    def part(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        k = self.draw(st.integers(0, array.ndim - 1))
        sizes, rest = [], array.shape[k]
        while rest:
            sizes.append(self.draw(st.integers(1, rest)))
            rest -= sizes[-1]
        i = self.draw(st.integers(0, len(sizes) - 1))
        start = sum(sizes[:i])
        return expr.split(k, *sizes)[i], array.take(range(start, start + sizes[i]), k)

    def at(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        if array.ndim == 1:
            return expr, array
        k = self.draw(st.integers(0, array.ndim - 1))
        i = self.draw(st.integers(0, array.shape[k] - 1))
        return expr.at(k, i), array.take(i, k)

    def pad(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        k = self.draw(st.integers(0, array.ndim - 1))
        before, after = self.draw(st.integers(0, 2)), self.draw(st.integers(0, 2))
        widths = [(before, after) if axis == k else (0, 0) for axis in range(array.ndim)]
        return expr.pad(k, before, after), np.pad(array, widths)

    def join(self, expr: Expr, array: np.ndarray) -> tuple[Expr, np.ndarray]:
        k = self.draw(st.integers(0, array.ndim - 1))
        name = f"t{len(self.tensors)}"
        more = array.take(range(max(1, array.shape[k] - 1)), k) + 1000
        self.tensors[name] = np.ascontiguousarray(more)
        return cat(expr, S(name), axis=k), np.concatenate([array, more], k)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_random_expressions_equal_numpy(data):
    random = Random(data)
    expr, array = random.source()
    for _ in range(data.draw(st.integers(0, 6))):
        expr, array = random.step(expr, array)
    assert np.array_equal(run(expr, random.tensors, array.shape), array)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_apply_then_reverse_is_identity(data):
    """For expressions that lose nothing: movements and joins only."""
    random = Random(data)
    expr, array = random.source()
    for _ in range(data.draw(st.integers(0, 5))):
        expr, array = data.draw(st.sampled_from([random.mv, random.join, random.pad]))(expr, array)
    axes = " ".join(NAMES[: array.ndim])
    table = Adapter("test")
    table["x"] = expr.mv(f"{axes} -> {axes}")
    plan, checkpoint = plan_for(table, random.tensors, x=Param(axes, **dict(zip(NAMES, array.shape, strict=False))))
    back = reverse(plan, materialise(plan, checkpoint))
    assert back.keys() == random.tensors.keys()
    assert all(np.array_equal(back[name], tensor) for name, tensor in random.tensors.items())


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_clip_equals_index(data):
    random = Random(data)
    expr, array = random.source()
    for _ in range(data.draw(st.integers(0, 4))):
        expr, array = random.step(expr, array)
    axes = " ".join(NAMES[: array.ndim])
    table = Adapter("test")
    table["x"] = expr.mv(f"{axes} -> {axes}")
    plan, checkpoint = plan_for(table, random.tensors, x=Param(axes, **dict(zip(NAMES, array.shape, strict=False))))
    k = data.draw(st.integers(0, array.ndim - 1))
    start = data.draw(st.integers(0, array.shape[k] - 1))
    stop = data.draw(st.integers(start + 1, array.shape[k]))
    entry = plan.entries["x"]
    region = clip(entry.region, {NAMES[k]: (start, stop)})
    from bringup.adapters.apply.materialise import fill_region

    result = fill_region(region, entry.sources, checkpoint.read, "float32")
    assert np.array_equal(result, array.take(range(start, stop), k))


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ `packing_utils`: nibble i of a word holds column order[i]


def pack_nibbles(values: np.ndarray, axis: int, order: list[int]) -> np.ndarray:
    """int32 words of eight 4-bit values along an axis; nibble i holds value order[i]."""
    grouped = np.moveaxis(values, axis, -1).reshape(*np.moveaxis(values, axis, -1).shape[:-1], -1, 8)
    words = np.zeros(grouped.shape[:-1], np.uint32)
    for nibble, column in enumerate(order):
        words |= grouped[..., column].astype(np.uint32) << (4 * nibble)
    return np.moveaxis(words.view(np.int32), -1, axis)


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_awq_becomes_gptq_and_back(rows, columns, seed):
    """AWQ packs along the outputs in its own order, GPTQ along the inputs in plain order: a pure movement."""
    values = np.random.default_rng(seed).integers(0, 16, (8 * rows, 8 * columns))
    awq = pack_nibbles(values, 1, AWQ_ORDER).copy()
    gptq = pack_nibbles(values, 0, list(range(8))).copy()
    table = Adapter("awq")
    table["qweight"] = S("awq").bits("uint4", "n").mv("in word (odd pair) -> in out:(word pair odd)", odd=2)
    params = Param("in out", dtype="uint4", pack="in:8", **{"in": 8 * rows, "out": 8 * columns})
    plan, checkpoint = plan_for(table, {"awq": awq}, qweight=params)
    assert plan.problems == []
    result = materialise(plan, checkpoint)
    assert np.array_equal(result["qweight"], gptq)
    assert np.array_equal(reverse(plan, result)["awq"], awq)


def test_pad_fills_with_zeros_and_reverse_leaves_them_out():
    array = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(run(S("t").pad(0, after=2), {"t": array}, (4, 3)), np.pad(array, ((0, 2), (0, 0))))


def test_dequant_blocks_with_a_short_last_one():
    payload = np.random.default_rng(0).normal(size=(5, 7)).astype(ml_dtypes.float8_e4m3fn)
    scales = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    result = run(dequant(S("w"), S("s"), block=(4, 3)), {"w": payload, "s": scales}, (5, 7))
    wanted = payload.astype(np.float32) * scales.repeat(4, 0)[:5].repeat(3, 1)[:, :7]
    assert np.array_equal(result, wanted)


def test_quant_then_dequant_is_near():
    array = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    payload, scales = quant(S("w"), block=(4, 4))
    result = run(dequant(payload, scales, block=(4, 4)), {"w": array}, (8, 8))
    assert np.abs(result - array).max() <= np.abs(array).max() * 2**-4  # e4m3 has three bits of mantissa


def test_float_cast_rounds_to_nearest_even():
    array = np.array([1.00390625, 1.01171875, -3.3], np.float32)  # the first two lie between two bfloat16 values
    result = run(S("w"), {"w": array}, (3,), dtype="bfloat16")
    assert result.tobytes() == array.astype(ml_dtypes.bfloat16).tobytes()
    assert run(cast(S("w"), "float16"), {"w": array}, (3,), dtype="float16").tobytes() == array.astype("f2").tobytes()


def test_reverse_refuses_what_was_rounded():
    table = Adapter("test")
    table["x"] = S("w")
    plan, checkpoint = plan_for(table, {"w": np.ones(3, np.float32)}, x=Param("a", a=3, dtype="bfloat16"))
    with pytest.raises(BringupError, match="BU117"):
        reverse(plan, materialise(plan, checkpoint))


def test_scale_by_a_power_of_two_has_an_inverse():
    table = Adapter("test")
    table["x"] = scale(S("w", "a"), 0.5)
    array = np.array([1.5, -3.0], np.float32)
    plan, checkpoint = plan_for(table, {"w": array}, x=Param("a", a=2))
    result = materialise(plan, checkpoint)
    assert np.array_equal(result["x"], array / 2)
    assert np.array_equal(reverse(plan, result)["w"], array)


def test_function_that_returns_another_shape_is_reported():
    table = Adapter("test")
    table["x"] = fn(lambda a: a[:-1], S("w", "a"), axes="a", dtype="float32", a=3)
    plan, checkpoint = plan_for(table, {"w": np.ones(3, np.float32)}, x=Param("a", a=3))
    with pytest.raises(BringupError, match="BU116"):
        materialise(plan, checkpoint)


def test_function_that_turns_its_result_is_reported_though_the_size_is_right():
    table = Adapter("test")
    table["x"] = fn(np.transpose, S("w", "b a"), axes="b a", dtype="float32", a=3, b=2)
    plan, checkpoint = plan_for(table, {"w": np.ones((2, 3), np.float32)}, x=Param("b a", a=3, b=2))
    with pytest.raises(BringupError, match="BU116"):
        materialise(plan, checkpoint)


def test_cut_through_a_quantisation_block_is_refused():
    table = Adapter("fp8")
    part, _ = S("w.{p}", "(h x) m", x=192).mv("(h x) m -> h x m", x=192).split("x", 96, 96)
    table["k.{p:weight|scale}"] = packed(part.mv("h d m -> (h d) m"), scale={"x": 96, "m": 128})
    table.rules[0].expr.blocks["scale"]["x"] = 128
    tensors = {"w.weight": np.zeros((384, 128), np.float32), "w.scale": np.zeros((3, 1), np.float32)}
    plan, _ = plan_for(
        table,
        tensors,
        k__weight=Param("out:(h d) in:m", h=2, d=96, m=128),
        k__scale=Param("out:(h d) in:m", h=2, d=1, m=1),
    )
    (problem,) = plan.problems
    assert problem.parameter == "k.scale"
    assert "192 along `x` cuts a 128-wide quantisation block" in problem.message


def test_hole_in_numbering_is_a_missing_tensor():
    table = Adapter("experts")
    table["w"] = stack(S("experts.{E}.w", "m"), over="E", n=4)
    tensors = {f"experts.{i}.w": np.zeros(2, np.float32) for i in (0, 1, 3)}
    plan, _ = plan_for(table, tensors, w=Param("e m", e=4, m=2))
    assert [p.sources for p in plan.problems] == [("experts.2.w",)]


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (S("t").mv("a b -> b a c"), "axes"),
        (S("t").mv("a -> a"), "dimensions"),
        (S("t").split(0, 1, 2)[0], "add up to"),
        (S("t").at(0, 9), "not inside"),
        (cat(S("t"), S("u"), axis=1), "cannot concatenate"),
    ],
)
def test_ill_formed_expressions_say_why(expr, message):
    table = Adapter("test")
    table["x"] = expr
    tensors = {"t": np.zeros((4, 6), np.float32), "u": np.zeros((3, 6), np.float32)}
    plan, _ = plan_for(table, tensors, x=Param("a b", a=6, b=4))
    assert [message in problem.message for problem in plan.problems] == [True]


def test_a_parameter_needs_sizes_for_all_axes():
    with pytest.raises(AxesError, match="no size given for axis `d`"):
        Param("out:(h d) in", h=2, **{"in": 3})
