"""Seeded random weights in a published layout, for machines without the published ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.diagnostics import fail
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

STD = 0.02  # initializer_range of GPT-2, Llama and most others


def dummy_checkpoint(headers: Mapping[str, TensorInfo], config: Mapping[str, Any], seed: int = 0) -> Checkpoint:
    """Values depend only on a tensor's name and the seed, not on which tensors are read or in which order.

    Floats are normal(0, 0.02); a vector whose name ends in `weight` (a norm's gain) is 1 + that; exponents (e8m0) and
    integers are uniform, but int64 is 0: these are offsets, which must be valid, such as `d2t` of a draft. They are
    generated when they are read.
    """

    def read(info: TensorInfo) -> np.ndarray:
        return _values(info, seed)

    return Checkpoint(
        source="dummy",
        format="dummy",
        headers=dict(headers),
        config=dict(config),
        read=read,
        provenance={"source": "dummy", "weights": "dummy", "seed": seed},
    )


def _values(info: TensorInfo, seed: int) -> np.ndarray:
    import numpy as np

    from bringup.adapters.checkpoints.arrays import aligned

    dtype = DTYPES[info.dtype]
    digest = hashlib.sha256(info.name.encode()).digest()
    rng = np.random.default_rng([seed, *np.frombuffer(digest, np.uint32)])
    if dtype.block:
        return _blocks(info, rng.standard_normal(info.shape, np.float32) * np.float32(STD))
    out = aligned(info.shape, info.dtype)
    if info.dtype == "float8_e8m0fnu":
        out[...] = np.exp2(rng.integers(-8, -3, info.shape)).astype(np.float32)
    elif dtype.kind == "float":
        rest = rng.standard_normal(info.shape, np.float32)
        rest *= np.float32(STD)
        out[...] = rest + (len(info.shape) == 1 and info.name.endswith("weight"))
    elif info.dtype == "int64":
        out[...] = 0
    elif dtype.kind == "bool":
        out[...] = rng.integers(0, 2, info.shape)
    else:
        low = -(1 << min(dtype.bits, 8) - 1) if dtype.kind == "int" else 0
        out[...] = rng.integers(low, low + (1 << min(dtype.bits, 8)), info.shape, np.int16)
    return out


def _blocks(info: TensorInfo, values: np.ndarray) -> np.ndarray:
    from gguf import GGMLQuantizationType, quantize

    try:
        return quantize(values, GGMLQuantizationType[info.dtype.upper()]).reshape(-1)
    except NotImplementedError:
        help = "use dummy weights in a layout in q8_0 or in floats"
        message = f"no dummy values for `{info.name}`: gguf reads {info.dtype} and cannot write it"
        raise fail("BU223", message, help=help, sources=(info.name,)) from None
