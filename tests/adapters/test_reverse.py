"""What comes back bit for bit, and what is refused since it would not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bringup.adapters.algebra.expr import Expr, S, cat
from bringup.adapters.algebra.values import fn, scale
from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import Param
from tests.adapters.layouts import declare

F32 = np.arange(1, 5, dtype=np.float32)
BF16 = ml_dtypes.bfloat16


def planned(rules: dict[str, Expr], tensors: dict[str, np.ndarray], **params: Param):
    """A plan, and the arrays it makes."""
    table = Adapter("test")
    for name, expr in rules.items():
        table[name] = expr
    checkpoint = dict_checkpoint(tensors, {})
    plan = make_plan(declare(**params), table, checkpoint.headers)
    assert plan.problems == []
    return plan, materialise(plan, checkpoint)


def comes_back(plan: Plan, arrays: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> None:
    back = reverse(plan, arrays)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape), name
        assert back[name].tobytes() == tensor.tobytes(), name


def refused(plan: Plan, arrays: dict[str, np.ndarray]) -> str:
    with pytest.raises(BringupError, match="BU117") as caught:
        reverse(plan, arrays)
    return str(caught.value)


def test_value_that_several_parameters_hold():
    q, k = scale(S("qk", "n", n=4), 2.0).split("n", 2, 2)
    plan, arrays = planned({"q": q, "k": k}, {"qk": F32}, q=Param("n", n=2), k=Param("n", n=2))
    comes_back(plan, arrays, {"qk": F32})


def test_value_that_a_fused_buffer_holds_in_parts():
    parts = scale(S("w", "n m", n=6), 2.0).split("n", 2, 2, 2)
    rules = {f"l.{x}_proj.weight": part for x, part in zip("qkv", parts, strict=True)}
    params = {f"l__{x}_proj__weight": Param("n m", n=2, m=2) for x in "qkv"}
    tensors = {"w": np.arange(12, dtype=np.float32).reshape(6, 2)}
    plan, _ = planned(rules, tensors, **params)
    physical = lay_out(plan, fused())
    comes_back(physical, materialise(physical, dict_checkpoint(tensors, {})), tensors)


def test_one_rule_for_two_layers_keeps_their_values_apart():
    tensors = {"0.w": F32, "1.w": F32 + 10}
    params = {f"h__{i}__w": Param("n", n=4) for i in range(2)}
    plan, arrays = planned({"h.{L}.w": scale(S("{L}.w", "n"), 2.0)}, tensors, **params)
    comes_back(plan, arrays, tensors)


def test_value_of_which_a_part_is_read():
    q, _ = scale(S("qk", "n", n=4), 2.0).split("n", 2, 2)
    plan, arrays = planned({"q": q}, {"qk": F32}, q=Param("n", n=2))
    assert "of qk (scale by 2) the parameters hold only 50 %" in refused(plan, arrays)


WIDTHS = {"float16": np.float16, "bfloat16": BF16, "float32": np.float32, "float64": np.float64}
EXACT = {
    ("float16", "float32"),
    ("float16", "float64"),
    ("bfloat16", "float32"),
    ("bfloat16", "float64"),
    ("float32", "float64"),
    *((name, name) for name in WIDTHS),
}


@pytest.mark.parametrize("stored", WIDTHS)
@pytest.mark.parametrize("held", WIDTHS)
def test_floats_come_back_when_the_dtype_holds_them_all(stored, held):
    bits = np.random.default_rng(0).normal(size=64).astype(WIDTHS[stored])
    plan, arrays = planned({"x": S("w")}, {"w": bits}, x=Param("a", a=64, dtype=held))
    if (stored, held) in EXACT:
        comes_back(plan, arrays, {"w": bits})
    else:
        assert f"{stored} became {held}" in refused(plan, arrays)


def test_input_of_a_value_that_was_rounded():
    both = cat(S("a", "u", u=2), S("b", "v", v=2), axis="n")
    tensors = {"a": np.ones(2, np.float16), "b": np.array([3.1, 1.0001], np.float32)}
    plan, arrays = planned({"w": scale(both, 2.0)}, tensors, w=Param("n", n=4, dtype="float16"))
    assert "float32 became float16" in refused(plan, arrays)


@pytest.mark.parametrize(
    "inverse",
    [
        lambda a: (a.astype(np.float64),),
        lambda a: (a[:2],),
        lambda a: (a.reshape(2, 2),),
        lambda a: (a.view(np.int32),),
        lambda a: (a, a),
    ],
)
def test_inverse_that_gives_something_else(inverse):
    expr = fn(lambda a: a, S("w", "n"), axes="n", n=4, dtype="float32", inverse=inverse)
    plan, arrays = planned({"x": expr}, {"w": F32}, x=Param("n", n=4))
    assert "the inverse of" in refused(plan, arrays)


@pytest.mark.parametrize(
    "given", [{}, {"x": F32.astype(np.float64)}, {"x": F32[:2]}, {"x": F32.view(np.int32)}, {"x": F32.reshape(2, 2)}]
)
def test_array_that_is_not_the_parameters(given):
    plan, _ = planned({"x": S("w")}, {"w": F32}, x=Param("n", n=4))
    assert "not float32 [4]" in refused(plan, given)


def test_tensor_of_which_a_part_is_read():
    first, _ = S("w", "n", n=4).split("n", 1, 3)
    plan, arrays = planned({"x": first}, {"w": F32}, x=Param("n", n=1))
    assert "of w the parameters hold only 25 % of it (32 of 128 bits)" in refused(plan, arrays)


def test_half_of_a_byte_counts():
    table = Adapter("test")
    table["x"] = S("w", "n", n=2).split("n", 1, 1)[0]
    headers = dict_checkpoint({"w": _four_bit("int4", 2)}, {}).headers
    plan = make_plan(declare(x=Param("n", n=1, dtype="int4")), table, headers)
    assert "4 of 8 bits" in refused(plan, {"x": _four_bit("int4", 1)})


def test_slice_of_a_plan_is_refused():
    plan, _ = planned({"w": S("w")}, {"w": F32}, w=Param("h", h=4))
    part = slice_plan(plan, ("h",), 0, 2)
    assert "of w the parameters hold only 50 %" in refused(part, {"w": F32[:2]})


def test_ties_that_agree_and_ties_that_differ():
    plan, arrays = planned({"{x:a|b}": S("w")}, {"w": F32}, a=Param("n", n=4), b=Param("n", n=4))
    comes_back(plan, arrays, {"w": F32})
    arrays["b"][1] = 7
    assert "a and b give w different values" in refused(plan, arrays)


def test_overlap_in_which_a_value_differs():
    k = scale(S("w", "n", n=4), 2.0)
    plan, arrays = planned({"a": S("w", "n", n=4), "b": k}, {"w": F32}, a=Param("n", n=4), b=Param("n", n=4))
    comes_back(plan, arrays, {"w": F32})
    arrays["b"][3] = 7
    assert "a and b give w different values" in refused(plan, arrays)


def test_ties_may_hold_nan():
    nan = np.array([np.nan, -0.0], np.float32)
    plan, arrays = planned({"{x:a|b}": S("w")}, {"w": nan}, a=Param("n", n=2), b=Param("n", n=2))
    comes_back(plan, arrays, {"w": nan})


def test_tensor_read_as_two_dtypes():
    first, second = S("w", "n", n=4).split("n", 2, 2)
    rules = {"a": first, "b": second.bits("uint4", "v").mv("n v -> m:(n v)")}
    words = np.array([0x12345678, -5, 0x0F1E2D3C, -2], np.int32)
    params = {"a": Param("n", n=2, dtype="int32"), "b": Param("m", m=16, dtype="uint4", pack="m:8")}
    plan, arrays = planned(rules, {"w": words}, **params)
    comes_back(plan, arrays, {"w": words})


def _four_bit(dtype: str, *shape: int) -> np.ndarray:
    bits = np.arange(int(np.prod(shape)), dtype=np.uint8) % 16
    bits = (bits ^ 8) - np.uint8(8) if dtype == "int4" else bits
    return bits.view(getattr(ml_dtypes, dtype)).reshape(shape)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
@pytest.mark.parametrize("axes", ["in out", "out in"])
def test_tensor_of_four_bit_elements(dtype, axes):
    tensor = _four_bit(dtype, 4, 8)
    sizes = dict(zip(axes.split(), (4, 8), strict=True))
    param = Param("in out", dtype=dtype, pack="out:4", **sizes)
    plan, arrays = planned({"w": S("w", axes)}, {"w": tensor}, w=param)
    comes_back(plan, arrays, {"w": tensor})


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
def test_odd_number_of_four_bit_elements(dtype):
    tensor = _four_bit(dtype, 15)
    plan, arrays = planned({"w": S("w")}, {"w": tensor}, w=Param("n", n=15, dtype=dtype))
    comes_back(plan, arrays, {"w": tensor})
