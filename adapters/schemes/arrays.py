"""Arrays that several schemes store alike: codes with scales, and float4 in bytes."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import Expr
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.scheme import StoredMatrix
from bringup.graphs.core.form import Block, Form

E4M3, E2M1, E8M0 = "float8_e4m3fn", "float4_e2m1fn", "float8_e8m0fnu"
BY_MATRIX: Block = (0, 0)
BY_ROW: Block = (1, 0)

# Reasons for tensors that no weight is computed from.
OF_ACTIVATIONS = "a scale of activations, which are not quantised here"
OF_CACHE = "a scale of a quantised cache, and caches are of floats here"
_ACTIVATIONS = (
    "input_scale", "activation_scale", "input_scale_ub", "input_global_scale", "input_zero_point", "output_scale",
)  # fmt: skip
ACTIVATIONS: Mapping[str, str] = dict.fromkeys(_ACTIVATIONS, OF_ACTIVATIONS)
CACHES: Mapping[str, str] = dict.fromkeys(("k_scale", "v_scale", "kv_scale", "q_scale", "prob_output_scale"), OF_CACHE)


def by_block(block: Block) -> str:
    """The axes of an array with one value for each block, for `StoredMatrix.part`."""
    return " ".join("1" if not n else f"{axis}/{n}" for axis, n in zip(("out", "in"), block, strict=True))


def scaled(name: str, weight: StoredMatrix, codes: str, block: Block, scales: str = "weight_scale") -> QuantisedMatrix:
    """`weight` has the codes, `scales` one float for each block, `weight_zero_point`, if present, codes too."""
    zero = codes if "weight_zero_point" in weight.tensors else ""
    parts = {
        "codes": weight.part("weight", "out in", codes),
        "scales": weight.part(scales, by_block(block), "float32"),
    }
    if zero:
        parts["zeros"] = weight.part("weight_zero_point", by_block(block), codes)
    return QuantisedMatrix(name, Form(codes=codes, block=block, zero=zero), parts)


def exponents(weight: StoredMatrix, block: Block) -> Expr:
    """Scales that are powers of two, a byte each (OCP Microscaling Formats specification 1.0, section 5.4)."""
    return weight.part("weight_scale", by_block(block), "uint8").bits(E8M0)


def float4(weight: StoredMatrix, payload: str) -> Expr:
    """Codes e2m1, two in each byte, the first in the low bits (section 5.3.3 of the same specification)."""
    codes = weight.part(payload, "out in:2", "uint8").bits(E2M1, "half").mv("out byte half -> out (byte half)")
    return weight.within(codes, "out in")


def mxfp4(name: str, weight: StoredMatrix, payload: str) -> QuantisedMatrix:
    """float4 in groups of 32, each with an exponent."""
    block = 1, 32
    parts = {"codes": float4(weight, payload), "scales": exponents(weight, block)}
    return QuantisedMatrix(name, Form(codes=E2M1, block=block, scale=E8M0), parts)


def nvfp4(name: str, weight: StoredMatrix, payload: str, group: int, outer: Expr) -> QuantisedMatrix:
    """float4 in groups, each with an e4m3 scale, and one more scale for the matrix, `outer`."""
    block = 1, group
    scales = weight.part("weight_scale", by_block(block), E4M3)
    form = Form(codes=E2M1, block=block, scale=E4M3, outer=BY_MATRIX)
    parts = {"codes": float4(weight, payload), "scales": scales, "outer_scales": outer}
    return QuantisedMatrix(name, form, parts)
