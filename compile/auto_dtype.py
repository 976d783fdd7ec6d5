"""The dtype in which a model computes if the user names none."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.spec import DTYPES, FLOATS, TensorInfo


def dtype_of(requested: str, checkpoint: Checkpoint | None, adapter: Adapter) -> str:
    """The requested dtype, or the float type of most bytes of the weights; quantised ones become float32."""
    if requested != "auto":
        return requested
    most = _most(checkpoint.headers if checkpoint else {}, adapter)
    return most if most in FLOATS - {"float64"} else "float32"


def _most(headers: Mapping[str, TensorInfo], adapter: Adapter) -> str:
    """The dtype with the most bytes, ignoring dropped tensors, which are looked up only if they can decide."""
    weight: dict[str, int] = {}
    for info in headers.values():
        weight[info.dtype] = weight.get(info.dtype, 0) + _nbytes(info)
    while len(weight) > 1:
        names = adapter.names(headers)
        first, second = sorted(weight, key=lambda dtype: weight[dtype], reverse=True)[:2]
        counted = 0
        for name, info in names.items():
            if info.dtype == first and not adapter.drops_tensor(name, names):
                counted += _nbytes(info)
                if counted > weight[second]:
                    return first
        if counted == weight[first]:
            return first
        weight[first] = counted
    return next(iter(weight), "float32")


def _nbytes(info: TensorInfo) -> int:
    return info.nbytes or DTYPES[info.dtype].nbytes(info.shape)
