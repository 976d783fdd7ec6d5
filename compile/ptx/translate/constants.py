"""Constants of the generated code: named numpy scalars, which all basic blocks share."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from bringup.compile.ptx.assembly.operands import Immediate
from bringup.compile.ptx.translate.forms import WIDTH

TYPES: dict[str, Any] = {
    "u8": np.uint8,
    "i8": np.int8,
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}
"""Form -> numpy type."""


def pattern(form: str, bits: int) -> Any:
    """A scalar of a form with the given bits."""
    if form == "bool":
        return np.bool_(bits & 1)
    size = WIDTH[form] // 8
    return np.frombuffer((bits % (1 << 8 * size)).to_bytes(size, "little"), TYPES[form])[0]


class Constants:
    """`values` maps names to scalars."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._names: dict[tuple[str, int], str] = {}

    def number(self, form: str, bits: int) -> str:
        """The name of the constant with these bits."""
        key = (form, bits % (1 << WIDTH[form]))
        if key not in self._names:
            self._names[key] = f"c{len(self._names)}"
            self.values[self._names[key]] = pattern(*key)
        return self._names[key]

    def immediate(self, text: str, form: str) -> str:
        """The name of a constant as written in PTX (PTX ISA, "Constants").

        `0f` and `0d` are the bits of a float. So is an integer that is read as a float (`selp.b32 %f, 1065353216,
        ...`).
        """
        lower = text.lower()
        if lower.startswith("0f"):
            bits = int(text[2:], 16)
            if form == "f64":
                (value,) = struct.unpack("<f", struct.pack("<I", bits))
                return self.number(form, _double_bits(value))
            return self.number(form, bits)
        if lower.startswith("0d"):
            return self.number(form, int(text[2:], 16))
        decimal = "." in text or ("e" in lower and not lower.lstrip("-").startswith("0x"))
        if decimal and form == "f64":
            return self.number(form, _double_bits(float(text)))
        if decimal and form == "f32":
            return self.number(form, int(np.float32(float(text)).view(np.uint32)))
        return self.number(form, Immediate(text).integer)


def _double_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")
