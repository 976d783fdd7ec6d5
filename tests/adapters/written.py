"""Files for tests of readers: safetensors with any header, and folders of shards."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

from bringup.diagnostics import BringupError

RNG = np.random.default_rng(0)


def raises(code: str, match: str = "") -> Any:
    """One diagnostic of that code; its message stands alone, and its help says what to do."""

    def looks(error: BringupError) -> bool:
        (finding,) = error.findings
        return finding.code == code and bool(finding.help) and bool(re.search(match, finding.message + finding.help))

    return pytest.raises(BringupError, check=looks)


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def as_bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def shards(folder: Path, index: object = None, **files: dict[str, np.ndarray]) -> Path:
    for stem, tensors in files.items():
        safetensors.numpy.save_file(tensors, folder / f"{stem}.safetensors")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


ONE = np.ones(2, np.float32)
