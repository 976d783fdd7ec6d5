"""Random blocks of GGUF's types, in which every bit of codes and scales is used."""

from __future__ import annotations

import gguf
import numpy as np

from bringup.spec import DTYPES, Shape

# Where a block has numbers that are floats, by ggml-common.h: random bits there may be infinite, or no numbers.
SCALE_AT = {"q6_k": 208}
# Where the float16 stands that minimums are, or are scaled by, and how many scales are the middle of all codes. ggml
# adds those of q4_1 and q5_1, and subtracts the others.
MINIMUM_AT = {"q4_1": (2, -7.5), "q5_1": (2, -15.5), "q4_k": (2, 7.5), "q5_k": (2, 15.5)}
SPREAD = 1.4  # of a matrix's sums of inputs of variance one


def calm_blocks(dtype: str, shape: Shape, random: np.random.Generator) -> np.ndarray:
    """Blocks as rows of bytes [..., byte] of a tensor of `shape`, whose numbers are around zero.

    Their deviation is SPREAD over the root of the columns, as is that of layers whose outputs are as large as their
    inputs. mxfp4 has powers of two close to it.
    """
    width, nbytes = DTYPES[dtype].block or (1, 1)
    data = random.integers(0, 256, (*shape[:-1], shape[-1] // width, nbytes), np.uint8)
    wanted = SPREAD * shape[-1] ** -0.5
    if dtype == "mxfp4":  # codes have a root mean square of 2.9
        data[..., 0] = 127 + round(np.log2(wanted / 2.9)) + random.integers(-1, 2, data.shape[:-1])
        return data.reshape(*shape[:-1], -1)
    scales = random.uniform(0.5, 1.5, data.shape[:-1]) * random.choice([-1, 1], data.shape[:-1])
    _put(data, dtype, scales)
    rows = data.reshape(*shape[:-1], -1)
    _put(data, dtype, scales * wanted / gguf.dequantize(rows, gguf.GGMLQuantizationType[dtype.upper()]).std())
    return data.reshape(*shape[:-1], -1)


def _put(data: np.ndarray, dtype: str, scales: np.ndarray) -> None:
    numbers = {SCALE_AT.get(dtype, 0): scales}
    if dtype in MINIMUM_AT:
        at, middle = MINIMUM_AT[dtype]
        numbers[at] = middle * scales
    for at, values in numbers.items():
        data[..., at : at + 2] = values.astype(np.float16)[..., None].view(np.uint8)
