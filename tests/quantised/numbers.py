"""Packed matrices by brute force: codes, scales, and the dequantised float32 matrix.

Sources: OCP Microscaling Formats specification 1.0, sections 5.3 and 5.4 (e2m1, e8m0); OCP 8-bit floating point
specification 1.0 (e4m3); compressed-tensors 0.20, `compressors/pack_quantized/helpers.py` (integers in words).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

E4M3, E2M1, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.bfloat16
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def largest(matrix: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The largest magnitude of each block of rows and columns."""
    rows, columns = block
    return np.array(
        [
            [np.abs(matrix[i : i + rows, k : k + columns]).max() for k in range(0, matrix.shape[1], columns)]
            for i in range(0, matrix.shape[0], rows)
        ],
        np.float32,
    )


def in_blocks(scales: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Float32 of `shape`: the scale of the block that each element is in."""
    rows, columns = (np.arange(size) // size_of_block for size, size_of_block in zip(shape, block, strict=True))
    return scales.astype(np.float32)[rows[:, None], columns[None, :]]


def e2m1(values: np.ndarray) -> np.ndarray:
    """The codes of the nearest values."""
    return np.abs(values[..., None] - E2M1_VALUES).argmin(-1).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Two codes of four bits a byte, the first in the low bits."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, ceil(columns · bits / 32)] of unsigned codes, the first in the low bits; the last has zeros too."""
    each = 32 // bits
    found = np.zeros((len(codes), -(-codes.shape[1] // each)), np.uint32)
    for k, column in enumerate(codes.T):
        found[:, k // each] |= column.astype(np.uint32) << np.uint32(k % each * bits)
    return found.view(np.int32)
