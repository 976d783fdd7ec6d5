"""Every value node states the dtypes that it takes; any other is a finding with the tensor and its dtype."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from bringup.adapters.algebra.expr import Expr, S, stack
from bringup.adapters.algebra.values import cast, dequant, fn, quant, scale
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.compile.check.checker import check
from bringup.compile.job import open_job
from bringup.compile.pipeline import check as check_job
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import DTYPES
from tests.check.mutations.bases import base
from tests.check.quantised_forms import FORMS, quantised

SIZE = 4
PLAIN = [name for name, dtype in DTYPES.items() if dtype.kind != "block"]


def planned(expr: Expr, tensors: Mapping[str, np.ndarray], axes: str = "n m", **sizes: int) -> Plan:
    adapter = Adapter("test")
    adapter["w"] = expr
    declared = Declared("w", sized(axes, {"n": SIZE, "m": SIZE, **sizes}), "float32", None, None)
    return make_plan(Signature({"w": declared}), adapter, dict_checkpoint(tensors, {}).headers)


def array(dtype: str) -> np.ndarray:
    return np.ones((SIZE, SIZE), getattr(np, dtype, None) or getattr(ml_dtypes, dtype, bool))


W = S("w", "n m")
FLOATS = {"float64", "float32", "float16", "bfloat16"}
NODES: dict[str, tuple[Expr, set[str]]] = {
    "cast": (cast(W, "float32"), FLOATS | {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"}),
    "scale": (scale(W, 3.0), FLOATS),
    "quant": (cast(quant(W, (2, 2))[0], "float32"), FLOATS),
    "payload": (
        dequant(W, S("by", "n m"), (1, 1)),
        {"float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int8", "int4"},
    ),
    "payload that is stated": (dequant(W, S("by", "n m"), (1, 1), accepts=("float8_e5m2",)), {"float8_e5m2"}),
    "scales": (
        dequant(S("q", "n m"), W, (1, 1)),
        FLOATS | {"float8_e8m0fnu", "float8_e4m3fn"},
    ),
    "bits of float8": (
        cast(W.bits("float8_e4m3fn"), "float32"),
        {"float8_e4m3fn", "int8", "uint8"},
    ),
    "fn": (fn(np.negative, W, axes="n m", dtype="float32", n=SIZE, m=SIZE, accepts=({"float32"},)), {"float32"}),
}
CASES = [
    (node, dtype)
    for node in NODES
    for dtype in PLAIN
    if node != "bits of float8" or DTYPES[dtype].bits == 8  # others have another number of values
]


@pytest.mark.parametrize(("node", "dtype"), CASES)
def test_a_dtype_is_taken_or_reported(node: str, dtype: str) -> None:
    expr, takes = NODES[node]
    tensors = {"w": array(dtype), "by": array("float32"), "q": array("float8_e4m3fn")}
    plan = planned(expr, {name: tensors[name] for name in expr.names({})})
    problems = [problem for problem in plan.problems if problem.sources == ("w",)]
    assert [(p.code, p.actual, set(p.expected.split(" or "))) for p in problems] == (
        [] if dtype in takes else [("BU108", dtype, {*problems[0].expected.split(" or ")} if problems else set())]
    )
    if dtype in takes:
        found = materialise(plan, dict_checkpoint(tensors, {}))["w"]
        assert found.dtype == np.float32
    else:
        assert set(problems[0].expected.split(" or ")) >= takes
        (finding,) = (f for f in check(plan).findings if f.sources == ("w",))
        assert finding.message.startswith(f"`w` is stored as {dtype}; ")


def test_every_expert_of_another_dtype_is_named() -> None:
    tensors = {f"{k}.w": array("float8_e4m3fn") for k in range(5)} | {f"{k}.s": array("float32") for k in range(5)}
    tensors |= {"1.w": array("int8"), "3.w": array("int8")}
    one = dequant(S("{E}.w", "n m"), S("{E}.s", "n m"), (1, 1), accepts=("float8_e4m3fn",))
    plan = planned(stack(one, over="E", n=5), tensors, "e n m", e=5)
    (finding,) = check(plan).findings
    assert finding.code == "BU108"
    assert finding.sources == ("1.w", "3.w")
    assert finding.actual == "int8"


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "bfloat16", "float32", "float8_e5m2", "float8_e8m0fnu"])
@pytest.mark.parametrize("only", ["", "model.layers.1.self_attn.o_proj.weight"], ids=["every matrix", "one matrix"])
def test_payloads_of_deepseek(dtype: str, only: str) -> None:
    draft, form = base("deepseek_v3"), FORMS["fp8-blocks"]
    tensors = quantised(draft.tensors, form)
    for name, stored in tensors.items():
        if stored.dtype == ml_dtypes.float8_e4m3fn and only in name:
            tensors[name] = np.ones(stored.shape, getattr(np, dtype, None) or getattr(ml_dtypes, dtype, bool))
    report = check_job(open_job(None, dict_checkpoint(tensors, draft.config | {"quantization_config": form.words})))
    (finding,) = report.findings
    assert (finding.code, finding.expected, finding.actual) == ("BU108", "float8_e4m3fn", dtype)
    assert not only or finding.sources == (only,)


def test_e5m2_is_multiplied_truly() -> None:
    """Where a rule takes it: by hand, from the bits."""
    payload = np.arange(16, dtype=np.uint8).reshape(4, 4).view(ml_dtypes.float8_e5m2)
    tensors = {"w": payload, "by": np.full((2, 2), 0.5, np.float32)}
    plan = planned(dequant(W, S("by", "r k", r=2, k=2), (2, 2)), tensors)
    found = materialise(plan, dict_checkpoint(tensors, {}))["w"]
    bits = np.arange(16)
    exponent, mantissa = bits >> 2, bits & 3
    exact = np.where(exponent == 0, mantissa / 4 * 2.0**-14, (1 + mantissa / 4) * 2.0 ** (exponent - 15.0))
    assert np.array_equal(found, (exact * 0.5).reshape(4, 4).astype(np.float32))
