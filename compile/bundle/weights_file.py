"""A bundle's weights: one safetensors file, written in one pass, with a layout for use in mapped memory.

Format: https://github.com/huggingface/safetensors#format. The header is padded so that data begins at a multiple of
64 bytes, and tensors whose size is not a multiple of 64 are last: all others are then 64-byte aligned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.adapters.checkpoints.arrays import release_pages
from bringup.spec import DTYPES, TensorInfo
from bringup.system.atomic import create

if TYPE_CHECKING:
    import numpy as np

ALIGN = 64

# safetensors' names, from `Dtype` in its Rust source (safetensors/src/tensor.rs).
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_weights(
    path: Path,
    tensors: Sequence[TensorInfo],
    make: Callable[[str], np.ndarray],
    advance: Callable[[float], None] = lambda _: None,
) -> str:
    """Writes tensors one at a time, and returns the file's SHA-256; `make(name)` returns each array.

    Needs the memory of two arrays: while one is computed, the previous one is still hashed. Then its memory is
    released, so `make` must not return an array that is still used. `advance` receives the fraction of bytes written.
    Raises BU901, BU902.
    """
    ordered = sorted(tensors, key=lambda info: DTYPES[info.dtype].nbytes(info.shape) % ALIGN != 0)
    header, end = _header(ordered)
    with create(path) as file:
        file.write(header)
        before: np.ndarray | None = None
        for info in ordered:
            array = make(info.name)
            file.write(array.reshape(-1).view("uint8").data)
            if before is not None:
                release_pages(before)
            before = array
            advance((file.nbytes - len(header)) / max(end, 1))
    return file.digest


def _header(tensors: Sequence[TensorInfo]) -> tuple[bytes, int]:
    """The file up to its first tensor, and the number of bytes of the tensors."""
    entries: dict[str, dict[str, object]] = {}
    end = 0
    for info in tensors:
        start, end = end, end + DTYPES[info.dtype].nbytes(info.shape)
        entries[info.name] = {"dtype": _NAMES[info.dtype], "shape": list(info.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % ALIGN)
    return len(header).to_bytes(8, "little") + header, end
