"""Launch arguments of Triton's kernels as bytes: the binary interface of the kernels that it compiles."""

from __future__ import annotations

import struct
from collections.abc import Sequence

FORMATS = {
    "i1": "<?", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<?", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp32": "<f", "fp64": "<d",
}  # fmt: skip


def size_of(type_: str) -> int:
    """Bytes of an argument of a type in Triton's notation. Raises ValueError for a type that is not passed by value."""
    return struct.calcsize(_form_of(type_))


def packed(types: Sequence[str], values: Sequence[int | float]) -> list[bytes]:
    """The bytes of each argument, little-endian. `types` are Triton's names (`*bf16`, `i32`); pointers are addresses.

    Raises ValueError for a type that is not passed by value or lists of different lengths, struct.error for an integer
    out of range, OverflowError for a float out of range.
    """
    found: list[bytes] = []
    for type_, value in zip(types, values, strict=True):
        form = _form_of(type_)
        whole = form not in ("<f", "<d")
        found.append(struct.pack(form, int(value) if whole else float(value)))
    return found


def _form_of(type_: str) -> str:
    form = "<Q" if type_.startswith("*") else FORMATS.get(type_)
    if form is None:
        raise ValueError(f"no argument can be a {type_}")
    return form
