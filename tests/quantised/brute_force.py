"""Dequantises packed arrays element by element: the definition of `core.form.Form`, written again in numpy."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from bringup.graphs.core.packed_form import PackedForm


def numbers(packed: PackedForm, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The parameter [*packed.shape] in float32 of its stored arrays, by the names of the form's parts."""
    form = packed.form
    of = dict(zip((part.name for part in form.parts()), packed.dtypes, strict=True))
    codes = _codes(packed, arrays["codes"])
    values = np.empty(packed.shape, np.float32)
    for at in np.ndindex(*packed.shape):
        block = [i // size for i, size in zip(at, packed.block, strict=True)]
        if form.index:
            block[packed.indexed] = int(arrays["index"][at[packed.indexed]])

        def one(name: str, place: list[int]) -> np.float32:
            return np.float32(_number(arrays[name][tuple(place)], of[name]))

        code = np.float32(form.table[int(codes[at])] if form.table else _number(codes[at], of["codes"]))
        code = np.float32(code - np.float32(form.offset))
        scale = one("scales", block)
        if form.zero:
            code = np.float32(code - one("zeros", block))
        if form.outer:
            outer = [i // size for i, size in zip(at, packed.outer, strict=True)]
            scale = np.float32(scale * one("outer_scales", outer))
        value = np.float32(code * scale)
        if form.minimum:
            least = one("minimums", block)
            value = np.float32(value + (np.float32(least * one("outer_minimums", outer)) if form.outer else least))
        values[at] = value
    return values


def _codes(packed: PackedForm, stored: np.ndarray) -> np.ndarray:
    axis, count = packed.pack
    if count == 1:
        return stored
    wide = stored.astype(np.uint64) & (0xFFFFFFFF if stored.itemsize == 4 else 0xFF)
    parts = [(wide >> np.uint64(4 * k)) & np.uint64(15) for k in range(count)]
    return np.stack(parts, axis + 1).reshape(packed.shape).astype(np.uint8)


def _number(bits: np.generic, dtype: str) -> float:
    """An element's number, of narrow floats and signed numbers of 4 bits from its bits."""
    narrow = getattr(ml_dtypes, dtype, None)
    if narrow is None or dtype == "bfloat16":
        return float(bits)
    if dtype in ("int4", "uint4"):
        code = int(bits) & 15
        return float(code - 16 if dtype == "int4" and code > 7 else code)
    return float(np.array(int(bits), np.uint8).view(narrow))
