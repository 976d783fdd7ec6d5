# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""numpy arrays as torch tensors and back, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from bringup.compile.program.bind_weights import dtype_of

if TYPE_CHECKING:
    from torch import Tensor


def to_tensor(array: np.ndarray) -> Tensor:
    """A tensor that shares the array's memory; bfloat16 and float8 of ml_dtypes become torch's."""
    name = array.dtype.name
    if array.dtype.isbuiltin == 1:  # 2: registered by ml_dtypes
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(getattr(torch, name))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The reverse of `to_tensor`; a tensor that is not contiguous is copied."""
    dtype = dtype_of(str(tensor.dtype).removeprefix("torch."))
    tensor = tensor.detach().contiguous()
    if dtype.isbuiltin == 1:
        return tensor.numpy()
    return tensor.view({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).numpy().view(dtype)
