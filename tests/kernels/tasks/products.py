"""Products of activations with a matrix, in floats and packed."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np

from bringup.compile.kernels.select import products
from bringup.compile.kernels.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import View
from bringup.graphs.core.form import Form
from tests.kernels.graphs import Function
from tests.kernels.quant_weights import CASES, Case, Weight
from tests.kernels.tasks.task import Task, task_of


def product(rows: int, channels: int, columns: int, dtype: str, norm: str = "") -> Task:
    """A matrix product with a norm before it and a residual after it."""
    f = Function()
    x = f.given("x", (rows, channels), dtype, "value")
    if norm:
        scale = f.given("scale", (channels,), dtype)
        settings = {"weight": scale, "eps": 1e-5, "offset": 0.0, "round_last": False}
        x = f.node("bringup.rms_norm.default", {"n": ((rows, channels), dtype)}, x=x, **settings)
    weight = f.given("weight", (columns, channels), dtype)
    y = f.node("bringup.linear.default", {"y": ((rows, columns), dtype)}, x=x, weight=weight, bias=None)
    residual = f.given("residual", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=y, alpha=1)
    return task_of(f, "out")


def gated(rows: int, inner: int, dtype: str) -> Task:
    """Gate and up of one matrix: two accumulators."""
    f, channels = Function(), 400
    x = f.given("x", (rows, channels), dtype, "value")
    weight = f.given("weight", (2 * inner, channels), dtype)
    y = f.node("bringup.linear.default", {"y": ((rows, 2 * inner), dtype)}, x=x, weight=weight, bias=None)
    gate, up = (View(y.buffer, (rows, inner), (2 * inner, 1), offset) for offset in (0, inner))
    act = f.node("bringup.silu.default", {"act": ((rows, inner), dtype)}, x=gate)
    f.node("aten.mul.Tensor", {"out": ((rows, inner), dtype)}, self=act, other=up)
    return task_of(f, "out")


def of_experts() -> Task:
    """Blocks of five rows, each by the matrix of its expert."""
    f, dtype, blocks, rows, experts, channels, columns = Function(), "bfloat16", 3, 5, 4, 400, 16
    x = f.given("x", (blocks, rows, channels), dtype, "value")
    weight = f.given("weight", (experts, columns, channels), dtype)
    expert = f.array("expert", np.array([2, 0, 3]), "int64", "value")
    settings = {"weight_eoi": weight, "bias_eo": f.given("bias", (experts, columns), dtype), "expert_B": expert}
    f.node("bringup.expert_linear.default", {"out": ((blocks, rows, columns), dtype)}, x_BRi=x, **settings)
    return task_of(f, "out")


def in_panels(task: Task, stem: str) -> Task:
    """A product of more rows than a tile has, for sm_90 with one multiprocessor: its program has two wide tiles."""
    specialised = {"sm_90"} if stem == "hopper.linear_specialised" else set[str]()
    with patch.dict(products.PANELS, {"sm_90": 1}), patch.object(products, "SPECIALISED", specialised):
        calls = calls_of(task.graph, task.graph.groups[0], "sm_90") or ()
    assert [(call.kernel.stem, call.kernel.num_warps, call.grid) for call in calls] == [(stem, 8, (1, 1, 1))]
    return replace(task, calls=calls)


def quantised(rows: int, form: str, dtype: str) -> Task:
    """A matrix in few bits, and a residual after it."""
    f, channels, columns = Function(), 400, 16
    x = f.given("x", (rows, channels), dtype, "value")
    weight = Weight(f, "weight", CASES[form], (columns, channels), dtype)
    shape = {"y": ((rows, columns), dtype)}
    y = f.node("bringup.quant_linear.default", shape, x=x, bias=None, **weight.arguments)
    residual = f.given("residual", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=y, alpha=1)
    return task_of(f, "out")


def in_float8(rows: int, dtype: str) -> Task:
    """Gate and up in float8, whose product is rounded to float8."""
    f, channels, inner = Function(), 512, 32
    codes = f.random.integers(0, 0x60, (rows, channels)).astype(np.uint8)
    x = f.array("codes", codes, "uint8", "value")
    scales = f.given("scales", (rows, channels // 128), "float32", "value")
    case, shape = Case(Form(codes="float8_e4m3fn", block=(32, 128))), (rows, inner)
    parts: list[View] = []
    for name in ("gate", "up"):
        weight = Weight(f, f"{name}.weight", case, (inner, channels), dtype, "fp8")
        given = {"codes": x, "scales": scales, "bias": None, **weight.arguments}
        parts.append(f.node("bringup.fp8_linear.default", {name: (shape, dtype)}, **given))
    act = f.node("bringup.silu.default", {"act": (shape, dtype)}, x=parts[0])
    out = f.node("aten.mul.Tensor", {"out": (shape, dtype)}, self=act, other=parts[1])
    results = {"out.codes": (shape, "uint8"), "out.scales": ((rows, 1), "float32")}
    f.node("bringup.to_fp8.default", results, x=out, columns=32, scale=None)
    return task_of(f, *results)
