"""Sources that are computed from others when a plan is materialised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.region import Region
from bringup.graphs.core.axes import Axes, Axis
from bringup.spec import DTYPES, Shape, TensorInfo

AT_A_TIME = 1 << 18  # elements that are dequantised at once: a megabyte of float32

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[..., np.ndarray]
else:
    Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Computed:
    """A source that is computed: `run(*inputs)` gives an array of `shape` and `dtype`.

    `inputs` are regions over the same sources. `exact` says that no information is lost; `inverse`, where there is
    one, takes the result back to the inputs. `block` says how many values of each dimension have one scale.
    """

    name: str
    inputs: tuple[Region, ...]
    shape: Shape
    dtype: str
    run: Run
    exact: bool
    inverse: Callable[..., tuple[np.ndarray, ...]] | None = None
    block: Shape = ()


def dequantised(raw: Region, axes: Axes, dtype: str) -> Computed:
    """A GGUF block type read as float32."""
    shape = tuple(axis.size for axis in axes)
    width, _ = DTYPES[dtype].block or (1, 1)
    block = (*(1 for _ in shape[1:]), width)
    return Computed(
        f"dequantise {dtype}", (raw,), shape, "float32", _FromBlocks(dtype, shape), exact=False, block=block
    )


@dataclass(frozen=True, slots=True)
class _FromBlocks:
    """The values of a block type, by the `gguf` package (ggml-org/llama.cpp, gguf-py/gguf/quants.py).

    The package makes several arrays of a result's size on the way: so it gets some blocks at a time.
    """

    dtype: str
    shape: Shape

    def __call__(self, data: np.ndarray) -> np.ndarray:
        import numpy as np
        from gguf import GGMLQuantizationType, dequantize

        kind, (width, nbytes) = GGMLQuantizationType[self.dtype.upper()], DTYPES[self.dtype].block or (1, 1)
        values = np.empty((data.size // nbytes, width), np.float32)
        blocks, step = data.reshape(-1, nbytes), AT_A_TIME // width
        with np.errstate(all="ignore"):  # a scale may be infinite: that is the file's to say
            for start in range(0, len(blocks), step):
                some = blocks[start : start + step].reshape(-1)
                values[start : start + step] = dequantize(some, kind).reshape(-1, width)
        return values.reshape(self.shape)


def block_bytes(index: int, info: TensorInfo) -> Region:
    """All bytes of a tensor stored in blocks."""
    nbytes = DTYPES[info.dtype].nbytes(info.shape)
    return Region((Axis("byte", nbytes),), "uint8", (Nest(index, "uint8", 0, ((nbytes, 1, 1),), 0),))
