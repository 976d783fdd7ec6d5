"""Values of lanes: dtypes, masks, and bf16, fp16 and fp8 as bit patterns.

Every function accepts arrays or numpy scalars whose shapes broadcast to all lanes, and modifies none of them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64
i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
f16, f32, f64 = np.float16, np.float32, np.float64

where: Any = np.where
"""`np.where`, untyped: lanes have any dtype."""

array: Any = np.asarray
"""`np.asarray`, untyped."""

Lanes = NDArray[Any]
UNSIGNED: dict[int, Any] = {1: u8, 2: u16, 4: u32, 8: u64}
"""Bytes -> the unsigned dtype of that width."""

E4M3: NDArray[np.float32] = np.arange(256, dtype=u8).view(ml_dtypes.float8_e4m3fn).astype(f32)
"""The value of each fp8 pattern with 4 exponent bits (OCP 8-bit Floating Point Specification)."""

E5M2: NDArray[np.float32] = np.arange(256, dtype=u8).view(ml_dtypes.float8_e5m2).astype(f32)
"""The value of each fp8 pattern with 5 exponent bits (OCP 8-bit Floating Point Specification)."""

_SIXTEEN, _ONE, _HALFWAY = u32(16), u32(1), u32(0x7FFF)
_LOW, _HIGH = u32(0xFFFF), u32(0xFFFF0000)
_NAN16, _NAN8 = u16(0x7FFF), u8(0x7F)
E4M3_MAX, E5M2_MAX = f32(448), f32(57344)


def all_lanes(mask: Any) -> bool:
    """Whether every element is set. Counting takes a third of the time of `mask.all()`."""
    return np.count_nonzero(mask) == np.size(mask)


def any_lane(mask: Any) -> bool:
    """Whether any element is set."""
    return bool(np.count_nonzero(mask))


def active(mask: Any, predicate: Any) -> Any:
    """The lanes of a mask (None: all) whose predicate holds."""
    return predicate if mask is None else mask & predicate


def merged(mask: Any, new: Any, old: Any) -> Any:
    """The new values in the lanes of a mask, the old ones in the others; if there are none, these are undefined."""
    return new if old is None else where(mask, new, old)


def low_half(bits: Any) -> Any:
    """Bits 0 to 15 of a 32-bit word."""
    return (bits & _LOW).astype(u16)


def high_half(bits: Any) -> Any:
    """Bits 16 to 31 of a 32-bit word."""
    return (bits >> _SIXTEEN).astype(u16)


def pack_halves(high: Any, low: Any) -> Any:
    """Packs two 16-bit patterns in a 32-bit word."""
    return (high.astype(u32) << _SIXTEEN) | low


def widen_bf16(bits: Any) -> Any:
    """bf16 patterns to float32."""
    return (bits.astype(u32) << _SIXTEEN).view(f32)


def widen_low_bf16(bits: Any) -> Any:
    """The lower bf16 of a pair, as float32."""
    return (bits << _SIXTEEN).view(f32)


def widen_high_bf16(bits: Any) -> Any:
    """The upper bf16 of a pair, as float32."""
    return (bits & _HIGH).view(f32)


def round_bf16(values: Any) -> Any:
    """float32 to the nearest bf16 pattern, ties to even. NaN becomes 0x7FFF (PTX ISA, `cvt`)."""
    bits = values.view(u32)
    rounded = ((bits + _HALFWAY + ((bits >> _SIXTEEN) & _ONE)) >> _SIXTEEN).astype(u16)
    missing = values != values
    return where(missing, _NAN16, rounded) if any_lane(missing) else rounded


def truncate_bf16(values: Any) -> Any:
    """float32 to bf16 patterns, rounded toward zero."""
    return where(values != values, _NAN16, (values.view(u32) >> _SIXTEEN).astype(u16))


def round_half(values: Any) -> Any:
    """float32 to the nearest fp16 pattern, ties to even. NaN becomes 0x7FFF."""
    missing, rounded = values != values, values.astype(f16).view(u16)
    return where(missing, _NAN16, rounded) if any_lane(missing) else rounded


def truncate_half(values: Any) -> Any:
    """float32 to fp16 patterns, rounded toward zero: a finite value stays finite."""
    nearest = values.astype(f16)
    beyond = np.abs(nearest.astype(f32)) > np.abs(values)
    bits = nearest.view(u16)
    return where(values != values, _NAN16, where(beyond, bits - u16(1), bits))


def _saturate_fp8(values: Any, largest: np.float32, dtype: Any) -> Any:
    clipped = np.minimum(np.maximum(values, -largest), largest).astype(dtype)
    return where(values != values, _NAN8, clipped.view(u8))


def saturate_e4m3(values: Any) -> Any:
    """Floats to the nearest e4m3 pattern, clamped to ±448 (`.satfinite`)."""
    return _saturate_fp8(values.astype(f32), E4M3_MAX, ml_dtypes.float8_e4m3fn)


def saturate_e5m2(values: Any) -> Any:
    """Floats to the nearest e5m2 pattern, clamped to ±57344 (`.satfinite`)."""
    return _saturate_fp8(values.astype(f32), E5M2_MAX, ml_dtypes.float8_e5m2)


def pair_from_fp8(bits: Any, table: NDArray[np.float32]) -> Any:
    """Two fp8 patterns in 16 bits to two fp16 patterns in 32. Both formats are exact in fp16."""
    high, low = table[bits >> u16(8)].astype(f16), table[bits & u16(255)].astype(f16)
    return pack_halves(high.view(u16), low.view(u16))


def pair_to_fp8(high: Any, low: Any) -> Any:
    """Packs two 8-bit fp8 patterns in 16 bits."""
    return (high.astype(u16) << u16(8)) | low


def round_tf32(values: Any) -> Any:
    """float32 to tf32: the nearest with 10 bits of mantissa, ties away from zero, as 32 bits (`cvt.rna.tf32`)."""
    rounded = (values.view(u32) + u32(0x1000)) & u32(0xFFFFE000)
    return where(np.isfinite(values), rounded, values.view(u32) & u32(0xFFFFE000))
