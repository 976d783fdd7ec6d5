"""Sources that are computed from others when a plan is materialised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.algebra.region import Region
from bringup.graphs.core.axes import Axes, Axis
from bringup.graphs.core.form import Form
from bringup.spec import DTYPES, Shape, TensorInfo

Box = tuple[tuple[int, int], ...]
Grains = tuple[tuple[int, int], ...]
AT_A_TIME = 1 << 18  # elements that are dequantised at once: a megabyte of float32

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[..., np.ndarray]
else:
    Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Computed:
    """A source that is computed: `run(*inputs)` returns an array of `shape` and `dtype`.

    `inputs` are regions over the same sources. `exact`: no information is lost. `inverse`, if there is one, computes
    the inputs from the result. `block` is the number of values of each dimension that share a scale.

    `grains` declares which part of the inputs a part of the result depends on. It has a pair for each input and each
    dimension: that many indices of the result depend on that many indices of the input, in order; (0, 0) means that
    each depends on all. Without `grains`, each part depends on all inputs. `form`: the result is a quantised matrix,
    and `arrays` are those of `Form.parts`, in their order: the inputs, unless `arrays_of_form` has them. `formless`:
    the result is a quantised matrix for which there is no form, with the reason.
    """

    name: str
    inputs: tuple[Region, ...]
    shape: Shape
    dtype: str
    run: Run
    exact: bool
    inverse: Callable[..., tuple[np.ndarray, ...]] | None = None
    block: Shape = ()
    grains: tuple[Grains, ...] = ()
    form: Form | None = None
    arrays_of_form: tuple[Region, ...] = ()
    formless: str = ""

    @property
    def arrays(self) -> tuple[Region, ...]:
        """The arrays of the form."""
        return self.arrays_of_form or self.inputs

    def part(self, box: Box) -> tuple[Computed, Box] | None:
        """The value that computes a box of the result, and its box of complete grains; None for the complete result.

        A box has the first index and the end of each dimension.
        """
        if not self.grains:
            return None
        whole: list[tuple[int, int]] = []
        for k, ((start, stop), size) in enumerate(zip(box, self.shape, strict=True)):
            grain = math.lcm(*(grains[k][0] or 1 for grains in self.grains))
            whole.append((start // grain * grain, min(-(-stop // grain) * grain, size)))
        shape = tuple(stop - start for start, stop in whole)
        if shape == self.shape:
            return None
        inputs: list[Region] = []
        for region, grains in zip(self.inputs, self.grains, strict=True):
            for k, ((start, stop), (values, taken)) in enumerate(zip(whole, grains, strict=True)):
                if values:
                    end = min(-(-stop // values) * taken, region.shape[k])
                    region = region.window(k, start // values * taken, end)
            inputs.append(region)
        return replace(self, inputs=tuple(inputs), shape=shape, form=None, arrays_of_form=()), tuple(whole)


def dequantised(raw: Region, axes: Axes, dtype: str) -> Computed:
    """A tensor of a GGUF block type, dequantised to float32."""
    shape = tuple(axis.size for axis in axes)
    width, nbytes = DTYPES[dtype].block or (1, 1)
    block = (*(1 for _ in shape[1:]), width)
    by_row = (*(Axis("", size) for size in shape[:-1]), Axis("byte", shape[-1] // width * nbytes))
    grains = (*((1, 1) for _ in shape[1:]), (width, nbytes))
    return Computed(
        f"dequantise {dtype}",
        (replace(raw, axes=by_row),),
        shape,
        "float32",
        _FromBlocks(dtype),
        exact=False,
        block=block,
        grains=(grains,),
    )


@dataclass(frozen=True, slots=True)
class _FromBlocks:
    """The values of a block type, by the `gguf` package (ggml-org/llama.cpp, gguf-py/gguf/quants.py).

    Called with rows of bytes [..., byte]. The package allocates several arrays of the size of its result, so it is
    called with some blocks at a time.
    """

    dtype: str

    def __call__(self, data: np.ndarray) -> np.ndarray:
        import numpy as np
        from gguf import GGMLQuantizationType, dequantize

        kind, (width, nbytes) = GGMLQuantizationType[self.dtype.upper()], DTYPES[self.dtype].block or (1, 1)
        values = np.empty((data.size // nbytes, width), np.float32)
        blocks, step = data.reshape(-1, nbytes), AT_A_TIME // width
        with np.errstate(all="ignore"):  # a checkpoint may have infinite scales
            for start in range(0, len(blocks), step):
                some = blocks[start : start + step].reshape(-1)
                values[start : start + step] = dequantize(some, kind).reshape(-1, width)
        return values.reshape(*data.shape[:-1], -1)


def block_bytes(index: int, info: TensorInfo) -> Region:
    """All bytes of a tensor stored in blocks."""
    nbytes = DTYPES[info.dtype].nbytes(info.shape)
    return Region((Axis("byte", nbytes),), "uint8", (Nest(index, "uint8", 0, ((nbytes, 1, 1),), 0),))
