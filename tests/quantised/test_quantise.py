"""Weights quantised as they are loaded, against numbers that are rounded one by one, and bitsandbytes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit

from bringup.adapters.algebra.expr import Expr, S, stack
from bringup.adapters.apply.materialise import fill_region, materialise
from bringup.adapters.apply.quantise import quantise, recipe_of
from bringup.adapters.apply.shard import clip
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import make_plan
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import Param
from tests.adapters.layouts import declare

RECIPES = ("int8", "int4-g32", "fp8", "fp8-block", "mxfp4", "nf4")
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP Microscaling Formats 1.0, table 5


def rounded(matrix: np.ndarray, name: str) -> np.ndarray:
    """[out, in] by blocks, each number by itself."""
    if name == "nf4":
        codes, state = quantize_4bit(torch.from_numpy(matrix.astype(np.float32)), quant_type="nf4")
        return dequantize_4bit(codes, state).numpy()
    block = {"int8": (1, 0), "fp8": (1, 0), "fp8-block": (128, 128), "mxfp4": (1, 32), "int4-g32": (1, 32)}[name]
    rows, columns = (of or size for of, size in zip(block, matrix.shape, strict=True))
    result = np.empty(matrix.shape, np.float32)
    for r in range(0, matrix.shape[0], rows):
        for c in range(0, matrix.shape[1], columns):
            part = matrix[r : r + rows, c : c + columns].astype(np.float32)
            largest = float(np.abs(part).max())
            if name == "mxfp4":
                scale = np.float32(2.0 ** (math.floor(math.log2(largest)) - 2))
                codes = np.vectorize(nearest_e2m1)(part / scale)
            elif name.startswith("int"):
                top = 127 if name == "int8" else 7
                scale = np.float32(largest) / np.float32(top)
                codes = np.clip(np.round(part / scale), -top, top)
            else:
                scale = np.float32(largest) / np.float32(448)
                codes = np.clip(part / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            result[r : r + rows, c : c + columns] = codes.astype(np.float32) * scale
    return result


def nearest_e2m1(value: float) -> float:
    """To the nearest; of two as near, to the one whose last bit is 0."""
    size = min(abs(value), 6.0)
    best = min(range(8), key=lambda k: (abs(E2M1[k] - size), k % 2))
    return math.copysign(E2M1[best], value)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", RECIPES)
def test_as_it_is_and_transposed(name: str) -> None:
    """The published [in, out] of GPT-2 is rounded along what products sum over, too."""
    for stored, array in (("out in", random(200, 192)), ("in out", random(192, 200))):
        table = Adapter("test")
        table["x"] = S("w", stored)
        checkpoint = dict_checkpoint({"w": array}, {})
        plan = make_plan(declare(x=Param("out in", out=200, **{"in": 192})), table, checkpoint.headers)
        found = quantise(plan, recipe_of(name), ["x"])
        assert (found.names, found.left) == (("x",), {})
        ours = materialise(found.plan, checkpoint)["x"]
        np.testing.assert_array_equal(ours, rounded(array if stored == "out in" else array.T, name))


@pytest.mark.parametrize("name", RECIPES)
def test_parts_of_a_fused_tensor_and_ranks(name: str) -> None:
    array = random(3 * 128, 256)
    table = Adapter("test")
    for part, expr in zip(
        "qkv", S("w", "(t out) in", t=3).mv("(t out) in -> t out in", t=3).split("t", 1, 1, 1), strict=True
    ):
        table[part] = expr.mv("one out in -> (one out) in").mv("out in -> out in")
    checkpoint = dict_checkpoint({"w": array}, {})
    each = {part: Param("out in", out=128, **{"in": 256}) for part in "qkv"}
    plan = make_plan(declare(**each), table, checkpoint.headers)
    assert plan.problems == []
    found = quantise(plan, recipe_of(name), "qkv")
    arrays = materialise(found.plan, checkpoint)
    whole = rounded(array, name)
    for number, part in enumerate("qkv"):
        np.testing.assert_array_equal(arrays[part], whole[number * 128 : (number + 1) * 128])
    entry = found.plan.entries["k"]
    half = fill_region(clip(entry.region, {"out": (64, 128)}), entry.sources, checkpoint.read, "float32")
    np.testing.assert_array_equal(half, whole[192:256])


def test_stacked_experts() -> None:
    tensors = {f"experts.{e}.w": random(64, 64) + np.float32(e) for e in range(3)}
    expert: Expr = S("experts.{E}.w", "f m")
    table = Adapter("test")
    table["x"] = stack(expert, over="E", n=3)
    checkpoint = dict_checkpoint(tensors, {})
    plan = make_plan(declare(x=Param("e f m", e=3, f=64, m=64)), table, checkpoint.headers)
    found = quantise(plan, recipe_of("int4-g32"), ["x"])
    wanted = np.stack([rounded(array, "int4-g32") for array in tensors.values()])
    np.testing.assert_array_equal(materialise(found.plan, checkpoint)["x"], wanted)


def test_what_is_left() -> None:
    table = Adapter("test")
    table["x"] = S("w", "out in")
    checkpoint = dict_checkpoint({"w": random(8, 40)}, {})
    plan = make_plan(declare(x=Param("out in", out=8, **{"in": 40})), table, checkpoint.headers)
    found = quantise(plan, recipe_of("int4-g32"), ["x"])
    assert not found.names
    assert "whole blocks of 32" in found.left["x"]


@pytest.mark.parametrize("name", ["int4", "int4-g0", "fp4", ""])
def test_names_that_are_no_recipe(name: str) -> None:
    with pytest.raises(BringupError, match="BU413"):
        recipe_of(name)


def test_a_block_of_zeros() -> None:
    table = Adapter("test")
    table["x"] = S("w", "out in")
    checkpoint = dict_checkpoint({"w": np.zeros((4, 64), np.float32)}, {})
    plan = make_plan(declare(x=Param("out in", out=4, **{"in": 64})), table, checkpoint.headers)
    for name in RECIPES:
        assert not materialise(quantise(plan, recipe_of(name), ["x"]).plan, checkpoint)["x"].any()
