"""Floats as unsigned integers that have the same order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered(values):
    """uint32 of float32: -0 equals 0, NaN is above every number."""
    values = tl.where(values == 0.0, 0.0, values)
    bits = values.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ -1, bits | -2147483648)  # negative numbers backwards, below the others
    return tl.where(values != values, -1, order).to(tl.uint32, bitcast=True)
