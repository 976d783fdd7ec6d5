"""Operations on two 16-bit floats in a 32-bit register: each half is computed exactly and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bringup.compile.ptx.hardware.rounding import (
    fma16,
    fma_bf16,
    larger,
    larger_or_nan,
    round_bf16_once,
    smaller,
    smaller_or_nan,
)
from bringup.compile.ptx.hardware.values import (
    f16,
    f64,
    high_half,
    low_half,
    pack_halves,
    round_bf16,
    u16,
    where,
    widen_bf16,
    widen_high_bf16,
    widen_low_bf16,
)

_COMPARED = {"min": smaller, "max": larger, "min.NaN": smaller_or_nan, "max.NaN": larger_or_nan}


def _add(first: Any, second: Any) -> Any:
    return first + second


def _subtract(first: Any, second: Any) -> Any:
    return first - second


def _multiply(first: Any, second: Any) -> Any:
    return first * second


_NUMPY: dict[str, Callable[..., Any]] = {"add": _add, "sub": _subtract, "mul": _multiply}
_HALF: dict[str, Callable[..., Any]] = {**_NUMPY, **_COMPARED, "fma": fma16}


def _bf16(operation: str, values: list[Any]) -> Any:
    """The bf16 bit pattern of an operation on float32 values that are exact in bf16."""
    if operation == "fma":
        return fma_bf16(*values)
    if operation in _COMPARED:
        return round_bf16(_COMPARED[operation](*values))
    return round_bf16_once(_NUMPY[operation](*(value.astype(f64) for value in values)))


def one_bf16(operation: str, *patterns: Any) -> Any:
    """`add.bf16` and similar, on 16-bit patterns."""
    return _bf16(operation, [widen_bf16(pattern) for pattern in patterns])


def two_bf16(operation: str, *pairs: Any) -> Any:
    """`add.bf16x2` and similar."""
    high = _bf16(operation, [widen_high_bf16(pair) for pair in pairs])
    return pack_halves(high, _bf16(operation, [widen_low_bf16(pair) for pair in pairs]))


def two_half(operation: str, *pairs: Any) -> Any:
    """`add.f16x2` and similar."""
    high = _HALF[operation](*(high_half(pair).view(f16) for pair in pairs))
    low = _HALF[operation](*(low_half(pair).view(f16) for pair in pairs))
    return pack_halves(high.astype(f16).view(u16), low.astype(f16).view(u16))


_INTEGER: dict[str, Callable[..., Any]] = {"add": _add, "min": np.minimum, "max": np.maximum}


def two_integers(operation: str, first: Any, second: Any, dtype: Any) -> Any:
    """`add.s16x2` and similar: two 16-bit integers, which wrap around."""
    function = _INTEGER[operation]
    high = function(high_half(first).view(dtype), high_half(second).view(dtype))
    low = function(low_half(first).view(dtype), low_half(second).view(dtype))
    return pack_halves(high.view(u16), low.view(u16))


def half_is_nan(first: Any, second: Any) -> Any:
    """`set.nan.f16x2.f16x2`: 1.0 in each half in which either input is NaN."""
    one, zero = f16(1).view(u16), u16(0)

    def flags(half: Callable[[Any], Any]) -> Any:
        return where(np.isnan(half(first).view(f16)) | np.isnan(half(second).view(f16)), one, zero)

    return pack_halves(flags(high_half), flags(low_half))
