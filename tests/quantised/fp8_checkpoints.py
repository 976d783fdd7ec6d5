"""Checkpoints with float8 matrices and a scale for each block, of any family in transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedConfig

from tests.models import parity

PLAIN = ("embed", "norm", "lm_head", "gate.weight", "wte")  # what converters leave as it is


def write(config: PreTrainedConfig, folder: Path, block: int, unconverted: Sequence[str] = ()) -> Path:
    """A seeded random model, its layers' matrices in float8 with a scale for each `block` rows and columns.

    Modules whose names end in one of `unconverted` are not, and config.json lists them.
    """
    parity.save_checkpoint(config, folder)
    file, tensors = folder / "model.safetensors", {}
    left: list[str] = []
    for name, array in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(tuple(unconverted)):
            left.append(module)
        if array.ndim != 2 or any(word in name for word in PLAIN) or module in left:
            tensors[name] = array
        else:
            tensors[name], tensors[f"{name}_scale_inv"] = to_fp8(array, block)
    save_file(tensors, file, {"format": "pt"})
    words: dict[str, Any] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [block, block],
    }
    if left:
        words["modules_to_not_convert"] = left
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": words}), "utf-8")
    return folder


def to_fp8(matrix: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes float8_e4m3fn [rows, columns] and scales float32 [ceil(rows / block), ceil(columns / block)]."""
    rows, columns = (-(-size // block) for size in matrix.shape)
    codes, scales = np.empty(matrix.shape, ml_dtypes.float8_e4m3fn), np.empty((rows, columns), np.float32)
    for i, k in np.ndindex(rows, columns):
        part = slice(i * block, (i + 1) * block), slice(k * block, (k + 1) * block)
        scales[i, k] = np.abs(matrix[part]).max() / 448
        codes[part] = (matrix[part] / scales[i, k]).astype(codes.dtype)
    return codes, scales
