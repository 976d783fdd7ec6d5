"""The arrays that stand for GGUF's blocks, against the numbers that the gguf package reads from the same bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.gguf_forms import FORMS
from bringup.adapters.algebra.quantised import Dequantise, shape_of_part
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.apply.materialise import fill_region
from bringup.spec import DTYPES, Shape, TensorInfo

SEEDS = np.random.default_rng(0)
# Where a block has numbers that are floats: random bits there may be infinite, or no numbers.
FLOATS_AT = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q4_1": (0, 2), "q5_1": (0, 2)}


def random_blocks(dtype: str, shape: Shape) -> np.ndarray:
    """Rows of bytes of random blocks."""
    width, nbytes = DTYPES[dtype].block or (1, 1)
    data = SEEDS.integers(0, 256, (*shape[:-1], shape[-1] // width, nbytes), np.uint8)
    if dtype == "mxfp4":
        data[..., 0] = SEEDS.integers(100, 140, data.shape[:-1])
    else:
        for at in FLOATS_AT.get(dtype, (0,)):
            numbers = SEEDS.normal(size=(*data.shape[:-1], 1)).astype(np.float16)
            data[..., at : at + 2] = numbers.view(np.uint8)
    return data.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("shape", [(3, 512), (2, 3, 256)], ids=str)
def test_the_arrays_are_the_numbers(dtype: str, shape: Shape) -> None:
    rows = random_blocks(dtype, shape)
    info = TensorInfo("w", dtype, shape)
    scope = Scope({}, (), Names({"w": info}), {})
    axes = "e out in" if len(shape) == 3 else "out in"
    region = S("w", axes).region(scope)
    value = scope.sources[region.nests[0].source]
    assert isinstance(value, Computed)
    form = value.form
    assert form is not None
    assert form is FORMS[dtype]

    arrays = [fill_region(array, scope.sources, lambda _: rows.reshape(-1), array.dtype) for array in value.arrays]
    assert [array.shape for array in arrays] == [shape_of_part(part, shape) for part in form.parts()]
    wanted = gguf.dequantize(rows, gguf.GGMLQuantizationType[dtype.upper()])
    np.testing.assert_array_equal(Dequantise(form)(*arrays), wanted.reshape(shape))
