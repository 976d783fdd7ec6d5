# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Rows of padding tokens that transformers sets to 0 while it loads a model.

torch.nn.Embedding initialises the row of `padding_idx` to 0. transformers' `PreTrainedModel._init_weights` does so only
if the weight was not loaded. Families with an `_init_weights` of their own may lack that test (Youtu and BLT in 5.24):
its slice of the weight does not have the mark of a loaded one. The row of the checkpoint is then lost, and with a tied
head the token's logits too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.spec import TensorInfo

FLOATS = ("float32", "float16", "bfloat16", "float64")


def restore_padding_rows(model: Any, checkpoint: Checkpoint) -> list[str]:
    """Copies rows of the checkpoint to the embeddings in which they are 0; names each row that has other values."""
    import torch

    restored: list[str] = []
    for name, module in model.named_modules():
        row = module.padding_idx if isinstance(module, torch.nn.Embedding) else None
        if row is None or module.weight[row].any():
            continue
        for info in _stored(checkpoint, f"{name}.weight", tuple(module.weight.shape)):
            values = np.asarray(checkpoint.read(info)[row]).astype(np.float32)
            if values.any():
                with torch.no_grad():
                    module.weight[row] = torch.from_numpy(values).to(module.weight)
                restored.append(f"row {row} of `{info.name}`")
    return restored


def _stored(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Iterator[TensorInfo]:
    """The tensor of a parameter, if exactly one has its name, with or without the prefix of the base model."""
    found = [
        info
        for info in checkpoint.headers.values()
        if f".{name}".endswith(f".{info.name}") or info.name.endswith(f".{name}")
    ]
    if len(found) == 1 and found[0].shape == shape and found[0].dtype in FLOATS:
        yield found[0]
