"""Arrays in memory as a checkpoint: numpy's, ml_dtypes', torch tensors, and other objects with the DLPack protocol.

torch is imported only for objects of that protocol that numpy does not read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib import util
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.diagnostics import BringupError, fail
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np


def dict_checkpoint(weights: Mapping[str, Any], config: Mapping[str, Any], source: str = "dict") -> Checkpoint:
    """Each read returns a copy, so that the arrays of the dict never change. Raises BU241."""
    weights = {name: _array(name, value) for name, value in weights.items()}
    headers = {name: _header(name, value) for name, value in weights.items()}
    provenance = {"source": source, "bytes": sum(info.nbytes for info in headers.values())}

    def read(info: TensorInfo) -> np.ndarray:
        from bringup.adapters.checkpoints.arrays import aligned

        out = aligned(info.shape, info.dtype)
        value = weights[info.name]
        try:
            out[...] = _from_torch(info, value) if hasattr(value, "detach") else value
        except (TypeError, ValueError, RuntimeError) as error:  # not an array, although it has a shape and a dtype
            raise _bad(info.name, str(error).strip().partition("\n")[0]) from error
        return out

    return Checkpoint(
        source=source, format="dict", headers=headers, config=dict(config), read=read, provenance=provenance
    )


def _array(name: str, value: Any) -> Any:
    """The array of an object that has only the DLPack protocol, such as MAX's WeightData; any other value itself."""
    if hasattr(value, "__array__") or hasattr(value, "detach") or not hasattr(value, "__dlpack__"):
        return value
    import numpy as np

    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):  # numpy reads neither bfloat16 nor the memory of devices
        if util.find_spec("torch") is None:
            raise _bad(name, f"numpy cannot read this {type(value).__name__}, and torch is not installed") from None
    import torch

    try:
        return torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _bad(name, str(error).strip().partition("\n")[0]) from error


def _header(name: str, value: Any) -> TensorInfo:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  users' dicts are not typed
        raise _bad(str(name), "its name is not a string")
    if not hasattr(value, "dtype") or not _has_shape(value):
        raise _bad(name, f"it is a {type(value).__name__}, neither an array nor a tensor")
    layout = str(getattr(value, "layout", "torch.strided")).removeprefix("torch.")  # torch.sparse_coo, …
    if layout != "strided":
        raise _bad(name, f"it is a torch tensor with the layout {layout}; pass `tensor.to_dense()`")
    if hasattr(value, "mask") and hasattr(value, "filled"):
        raise _bad(name, "it is a masked array; pass `array.filled(…)`")
    dtype = str(value.dtype).removeprefix("torch.")
    dtype = getattr(value.dtype, "name", dtype)  # numpy's str() includes the byte order
    if dtype not in DTYPES or DTYPES[dtype].block:
        known = ", ".join(key for key in DTYPES if not DTYPES[key].block)
        raise _bad(name, f"its dtype is `{dtype}`; known: {known}")
    shape = tuple(int(size) for size in value.shape)
    width = -(-DTYPES[dtype].bits // 8)
    return TensorInfo(name, dtype, shape, nbytes=math.prod(shape) * width)


def _has_shape(value: Any) -> bool:
    """Whether it has a shape; a nested tensor of torch raises RuntimeError."""
    try:
        return all(hasattr(size, "__index__") for size in value.shape)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _from_torch(info: TensorInfo, tensor: Any) -> np.ndarray:
    """A tensor's bits; numpy has no bfloat16, so they are passed as bytes."""
    from bringup.adapters.checkpoints.arrays import numpy_dtype

    if tensor.device.type == "meta":
        raise _bad(info.name, "it is a torch tensor on the meta device: it has no values")
    torch = sys.modules["torch"]  # imported already, because there is a tensor
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().view(numpy_dtype(info.dtype)).reshape(info.shape)


def _bad(name: str, why: str) -> BringupError:
    help = "give numpy arrays, torch tensors or other objects with the DLPack protocol by name"
    return fail("BU241", f"weight `{name}` cannot be read: {why}", help=help, sources=(name,))
