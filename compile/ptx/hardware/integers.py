"""Integer operations and bit fields that numpy lacks (PTX ISA, "Integer Arithmetic", "Logic and Shift")."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bringup.compile.ptx.hardware.values import array, f64, i32, i64, u16, u32, u64, where


def from_float(values: Any, dtype: Any, rounded: Any, *, wide: bool) -> Any:
    """Converts floats to integers with a rounding function, clamped to the range of the type.

    NaN becomes 0. If source or destination has 64 bits (`wide`), it becomes the pattern with only the top bit (PTX ISA,
    `cvt`).
    """
    whole = rounded(array(values).astype(f64))
    limits = np.iinfo(dtype)
    missing, high, low = whole != whole, whole >= float(limits.max), whole <= float(limits.min)
    result = where(high | low | missing, 0.0, whole).astype(dtype)
    result = where(high, dtype(limits.max), where(low, dtype(limits.min), result))
    if not wide:
        return result
    return where(missing, dtype(limits.min) if limits.min else dtype(limits.max // 2 + 1), result)


def divide(numerator: Any, denominator: Any) -> Any:
    """The quotient, truncated. Division by zero returns all ones, as on hardware; PTX ISA leaves it unspecified."""
    numerator, denominator = array(numerator), array(denominator)
    by_zero = denominator == 0
    divisor = where(by_zero, denominator.dtype.type(1), denominator)
    quotient = numerator // divisor
    if numerator.dtype.kind == "i":
        inexact = quotient * divisor != numerator
        quotient = quotient + (inexact & ((numerator < 0) != (divisor < 0)))
    return where(by_zero, ~numerator.dtype.type(0), quotient).astype(numerator.dtype)


def remainder(numerator: Any, denominator: Any) -> Any:
    """`rem`: the remainder of `divide`, with the sign of the numerator."""
    return numerator - denominator * divide(numerator, denominator)


def multiply_high(first: Any, second: Any) -> Any:
    """The upper half of the product of 16-bit or 32-bit integers."""
    first = array(first)
    wide = i64 if first.dtype.kind == "i" else u64
    product = first.astype(wide) * array(second).astype(wide)
    return (product >> wide(8 * first.dtype.itemsize)).astype(first.dtype)


def multiply_high_64(first: Any, second: Any) -> Any:
    """The upper half of the product of 64-bit integers, from 32-bit products."""
    first, second = array(first), array(second)
    low, half = u64(0xFFFFFFFF), u64(32)
    a, b = first.astype(u64), second.astype(u64)
    carry = (a >> half) * (b & low) + (((a & low) * (b & low)) >> half)
    middle = (a & low) * (b >> half) + (carry & low)
    high = (a >> half) * (b >> half) + (carry >> half) + (middle >> half)
    if first.dtype.kind == "i":
        high = high - where(first < 0, b, u64(0)) - where(second < 0, a, u64(0))
    return high.astype(first.dtype)


def extract_unsigned(bits: Any, position: Any, length: Any) -> Any:
    """`bfe.u32`: extracts a bit field. Only the low 8 bits of position and length are used."""
    position, length = position & u32(255), length & u32(255)
    return where(length >= 32, bits >> position, (bits >> position) & ((u32(1) << length) - u32(1)))


def extract_signed(bits: Any, position: Any, length: Any) -> Any:
    """`bfe.s32`: extracts a sign-extended bit field. Beyond bit 31 it is filled with that bit."""
    position, length = position & i32(255), length & i32(255)
    top = np.minimum(position + length, i32(32))
    field = (bits << (i32(32) - top)) >> np.clip(i32(32) - (top - position), 0, 31).astype(i32)
    return where(length == 0, i32(0), where(position >= 32, bits >> i32(31), field))


def insert(field: Any, bits: Any, position: Any, length: Any) -> Any:
    """`bfi.b32`: inserts a bit field at a position."""
    position, length = position & u32(255), length & u32(255)
    mask = where(length >= 32, u32(0xFFFFFFFF), (u32(1) << length) - u32(1)) << position
    return (bits & ~mask) | ((field << position) & mask)


def permute_bytes(low: Any, high: Any, selector: Any) -> Any:
    """`prmt.b32`: selects four of eight bytes. Bit 3 of a selector replicates the sign of the byte."""
    if np.ndim(selector) == 0 and not int(selector) & 0x8888:
        return _moved_bytes(low, high, int(selector))
    source = array(low).astype(u64) | (array(high).astype(u64) << u64(32))
    result = u32(0)
    for place in range(4):
        choice = (selector >> u32(4 * place)) & u32(15)
        byte = ((source >> (u64(8) * (choice & u32(7)).astype(u64))) & u64(255)).astype(u32)
        sign = where(byte & u32(128), u32(255), u32(0))
        result = result | (where(choice & u32(8), sign, byte) << u32(8 * place))
    return result


def _moved_bytes(low: Any, high: Any, selector: int) -> Any:
    """`permute_bytes` for a selector without signs: bytes that move equally far are moved together."""
    result: Any = u32(0)
    for of_high, left, right, mask in _moves(selector):
        result = result | ((((high if of_high else low) << left) >> right) & mask)
    return result


@lru_cache(maxsize=256)
def _moves(selector: int) -> tuple[tuple[bool, np.uint32, np.uint32, np.uint32], ...]:
    """For the bytes of each source that move equally far: the source, both shifts, and the bits of the result."""
    masks: dict[tuple[bool, int], int] = {}
    for place in range(4):
        choice = selector >> 4 * place & 7
        key = choice > 3, 8 * (place - choice % 4)
        masks[key] = masks.get(key, 0) | 255 << 8 * place
    return tuple((of_high, u32(max(left, 0)), u32(max(-left, 0)), u32(mask)) for (of_high, left), mask in masks.items())


def logic_of_three(first: Any, second: Any, third: Any, table: int) -> Any:
    """`lop3.b32`: a logical function of three inputs, by its truth table."""
    result: Any = u32(0)
    for row in range(8):
        if table >> row & 1:
            term = (first if row & 4 else ~first) & (second if row & 2 else ~second)
            result = result | (term & (third if row & 1 else ~third))
    return result


def reverse_bits(bits: Any) -> Any:
    """`brev.b32`."""
    for step, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        bits = ((bits >> u32(step)) & u32(mask)) | ((bits & u32(mask)) << u32(step))
    return (bits >> u32(16)) | (bits << u32(16))


def leading_zeros(bits: Any) -> Any:
    """`clz`: the leading zeros of 32 or 64 bits, as u32."""
    bits = array(bits)
    width = 8 * bits.dtype.itemsize
    count = np.zeros(bits.shape, u32)
    step = width // 2
    while step:
        clear = (bits >> bits.dtype.type(width - step)) == 0
        count = count + where(clear, u32(step), u32(0))
        bits = where(clear, bits << bits.dtype.type(step), bits)
        step //= 2
    return count + (bits == 0)


def funnel_left(low: Any, high: Any, amount: Any) -> Any:
    """`shf.l`: the upper 32 bits of a 64-bit value shifted left by 0 to 32."""
    both = (array(high).astype(u64) << u64(32)) | low
    return ((both << array(amount).astype(u64)) >> u64(32)).astype(u32)


def funnel_right(low: Any, high: Any, amount: Any) -> Any:
    """`shf.r`: the lower 32 bits of a 64-bit value shifted right by 0 to 32."""
    both = (array(high).astype(u64) << u64(32)) | low
    return (both >> array(amount).astype(u64)).astype(u32)


def count_16(amount: Any) -> Any:
    """A shift amount for 16 bits, clamped to 16."""
    return np.minimum(amount, u32(16)).astype(u16)
