"""A slice of a dequantised parameter: the whole one's values, read and computed from its own blocks only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.algebra.values import cast, dequant, scale
from bringup.adapters.apply import materialise as module
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import Site, TensorInfo

SHARE = 1.05  # of the bytes that a part's values have in the checkpoint: what may be read for it
MXFP4 = 32  # values to a scale


def plan_of(arrays: dict[str, np.ndarray], axes: str, sizes: dict[str, int], rule: Expr) -> tuple[Plan, Checkpoint]:
    adapter = Adapter("test")
    adapter["p"] = rule
    checkpoint = dict_checkpoint(arrays, {})
    declared = Declared("p", sized(axes, sizes), "float32", None, Site("tests", 1))
    plan = make_plan(Signature({"p": declared}), adapter, checkpoint.headers)
    assert not plan.problems
    return plan, checkpoint


def fp8(e: int, w: int, f: int, block: int, *, turned: bool = False) -> tuple[Plan, Checkpoint]:
    """[e, w, f] of float8 with a scale for each block of a matrix, also transposed and through further values."""
    random = np.random.default_rng(e * w * f)
    grid = e, -(-w // block), -(-f // block)
    arrays = {
        "w": random.standard_normal((e, w, f)).astype(ml_dtypes.float8_e4m3fn),
        "s": random.random(grid).astype(np.float32),
    }
    value = dequant(S("w", "e w f"), S("s", "e r c", r=grid[1], c=grid[2]), (1, block, block))
    if turned:
        value = scale(cast(value, "bfloat16"), 3.0).mv("e w f -> e f w")
    return plan_of(arrays, "e f w" if turned else "e w f", {"e": e, "w": w, "f": f}, value)


def mxfp4(e: int, w: int, blocks: int) -> tuple[Plan, Checkpoint]:
    """[e, w, f] of e2m1 with an e8m0 scale for 32 values, as gpt-oss stores its experts."""
    random = np.random.default_rng(e * w * blocks)
    arrays = {
        "w": random.integers(0, 256, (e, w, blocks, MXFP4 // 2), np.uint8),
        "s": random.integers(120, 134, (e, w, blocks), np.uint8),
    }
    sizes = {"b": blocks, "byte": MXFP4 // 2}
    values = S("w", "e w b byte", dtype="uint8", **sizes).bits("float4_e2m1fn", "half")
    values = values.mv("e w b byte half -> e w f:(b byte half)", **sizes)
    scales = S("s", "e w b", dtype="float8_e8m0fnu", b=blocks).bits("float8_e8m0fnu")
    rule = dequant(values, scales, (1, 1, MXFP4))
    return plan_of(arrays, "e w f", {"e": e, "w": w, "f": blocks * MXFP4}, rule)


def q8_0(w: int, blocks: int) -> tuple[Plan, Checkpoint]:
    """[w, f] of GGUF's Q8_0: 34 bytes for 32 values."""
    data = np.random.default_rng(w * blocks).integers(0, 100, (w, blocks * 34), np.uint8)
    info = TensorInfo("w", "q8_0", (w, blocks * 32))
    adapter = Adapter("test")
    adapter["p"] = S("w", "w f")
    declared = Declared("p", sized("w f", {"w": w, "f": blocks * 32}), "float32", None, Site("tests", 1))
    plan = make_plan(Signature({"p": declared}), adapter, {"w": info})
    assert not plan.problems
    return plan, replace(dict_checkpoint({}, {}), headers={"w": info}, read=lambda _: data.reshape(-1))


def shares(size: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in range(1, size + 1) if size % n == 0])


def sliced(plan: Plan, checkpoint: Checkpoint, axis: str, rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """The part of the whole, and the part by itself."""
    whole = materialise(plan, checkpoint)["p"]
    place = [each.name for each in plan.entries["p"].declared.axes].index(axis)
    part = materialise(slice_plan(plan, (axis,), rank, ranks), checkpoint)["p"]
    return np.split(whole, ranks, place)[rank], part


@given(st.data(), st.integers(1, 4), st.integers(1, 24), st.integers(1, 24), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_part_of_fp8_is_that_of_the_whole(data: Any, e: int, w: int, f: int, block: int, turned: bool) -> None:
    """Wherever it is cut: also within a block."""
    plan, checkpoint = fp8(e, w, f, block, turned=turned)
    axis = data.draw(st.sampled_from("ewf"))
    ranks = data.draw(shares({"e": e, "w": w, "f": f}[axis]))
    wanted, part = sliced(plan, checkpoint, axis, data.draw(st.integers(0, ranks - 1)), ranks)
    np.testing.assert_array_equal(part, wanted)


@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_part_of_mxfp4_is_that_of_the_whole(data: Any, e: int, w: int, blocks: int) -> None:
    plan, checkpoint = mxfp4(e, w, blocks)
    axis = data.draw(st.sampled_from("ewf"))
    ranks = data.draw(shares({"e": e, "w": w, "f": blocks * MXFP4}[axis]))
    wanted, part = sliced(plan, checkpoint, axis, data.draw(st.integers(0, ranks - 1)), ranks)
    np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(("axis", "ranks"), [("w", 2), ("w", 6), ("f", 2), ("f", 4), ("f", 8)])
def test_a_part_of_gguf_blocks_is_that_of_the_whole(axis: str, ranks: int) -> None:
    plan, checkpoint = q8_0(6, 4)
    for rank in range(ranks):
        wanted, part = sliced(plan, checkpoint, axis, rank, ranks)
        np.testing.assert_array_equal(part, wanted)


def test_nests_that_interleave_are_computed_together() -> None:
    """Rows that take turns: the box around both nests is computed once."""
    plan, checkpoint = fp8(1, 24, 8, 4)
    value = plan.entries["p"].sources[-1]
    runs: list[tuple[int, ...]] = []

    def run(array: np.ndarray, by: np.ndarray) -> np.ndarray:
        runs.append(array.shape)
        return value.run(array, by)

    entry = plan.entries["p"]
    nests = tuple(Nest(len(entry.sources) - 1, "float32", at * 8, ((8, 16, 8), (8, 1, 1)), at * 64) for at in (0, 1))
    region = replace(entry.region, axes=sized("e w f", {"e": 1, "w": 16, "f": 8}), nests=nests)
    watched = (*entry.sources[:-1], replace(value, run=run))
    found = module.fill_region(region, watched, checkpoint.read, "float32")
    whole = materialise(plan, checkpoint)["p"]
    np.testing.assert_array_equal(found, np.concatenate((whole[:, 0:16:2], whole[:, 1:16:2]), 1))
    assert runs == [(1, 16, 8)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every copy out of an array that was read, and of every such array that is unpacked whole."""
    counted: list[int] = []
    copy, packed, units, load = module.copy_nest, module.copy_packed, module.units, module.source_array
    loaded: list[np.ndarray] = []

    def is_read(array: np.ndarray) -> bool:
        return any(np.shares_memory(array, other) for other in loaded)

    def source_array(source: Any, *rest: Any) -> np.ndarray:
        array = load(source, *rest)
        if not hasattr(source, "inputs"):
            loaded.append(array)
        return array

    def copy_nest(nest: Any, array: np.ndarray, target: np.ndarray) -> None:
        counted.append(nest.count * array.itemsize if is_read(array) else 0)
        copy(nest, array, target)

    def copy_packed(nest: Any, array: np.ndarray, target: np.ndarray) -> bool:
        done = packed(nest, array, target)
        counted.append(nest.count // 2 if done else 0)
        return done

    def unpacked(array: np.ndarray, view: str) -> np.ndarray:
        out = units(array, view)
        counted.append(array.nbytes if is_read(array) and not np.shares_memory(out, array) else 0)
        return out

    for name, function in {
        "copy_nest": copy_nest, "copy_packed": copy_packed, "units": unpacked, "source_array": source_array,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, function)
    return counted


@pytest.mark.parametrize(("axis", "ranks"), [("e", 4), ("w", 4), ("f", 4), ("f", 2)])
@pytest.mark.parametrize("kind", ["fp8", "fp8-turned", "mxfp4"])
def test_a_part_reads_its_share(kind: str, axis: str, ranks: int, read: list[int]) -> None:
    plan, checkpoint = mxfp4(4, 64, 8) if kind == "mxfp4" else fp8(4, 64, 256, 16, turned=kind != "fp8")
    stored = sum(math.prod(info.shape) * np.dtype("u1" if info.name == "w" else checkpoint.read(info).dtype).itemsize
                 for info in checkpoint.headers.values())  # fmt: skip
    for rank in range(ranks):
        read.clear()
        materialise(slice_plan(plan, (axis,), rank, ranks), checkpoint)
        assert stored / ranks / SHARE <= sum(read) <= SHARE * stored / ranks, (sum(read), stored)
