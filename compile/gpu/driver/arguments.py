"""Arguments of Triton's kernels as bytes: the binary interface of what it compiles."""

from __future__ import annotations

import struct
from collections.abc import Sequence

FORMATS = {
    "i1": "<?", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<?", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp32": "<f", "fp64": "<d",
}  # fmt: skip


def size_of(type_: str) -> int:
    """Bytes of an argument. Raises ValueError for a type that is not passed by value."""
    return struct.calcsize(_form_of(type_))


def packed(types: Sequence[str], values: Sequence[int | float]) -> list[bytes]:
    """A value for each parameter; `types` as Triton writes them (`*bf16`, `i32`), addresses for pointers.

    Raises ValueError for a type that is not passed by value, struct.error for a number that does not fit.
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
