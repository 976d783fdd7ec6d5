"""Blocks of every GGUF type: random bytes with scales of ordinary size, and the values of some types' blocks.

The values follow llama.cpp's `ggml-quants.c`, `dequantize_row_*`, one element at a time. Types that transformers reads
with its own code are compared with that instead.
"""

from __future__ import annotations

import struct

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
# Where the fp16 scales of a block lie that no other bytes decide; IQ1_M has the parts of one in four places.
HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
    "Q4_1": (0, 2), "Q5_1": (0, 2), "MXFP4": (), "NVFP4": (), "IQ1_M": (),
}  # fmt: skip
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # OCP Microscaling Formats specification 1.0, section 5.3.3


def random_blocks(kind: Kind, count: int, random: np.random.Generator, scale: float = 0.01) -> np.ndarray:
    """uint8 [count, bytes of a block]."""
    blocks = random.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    half = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    for at in HALVES.get(kind.name, (0,)):
        blocks[:, at : at + 2] = half
    if kind is Kind.IQ1_M:
        for word, nibble in enumerate((half[0] & 15, half[0] >> 4, half[1] & 15, half[1] >> 4)):
            high = 48 + 2 * word + 1
            blocks[:, high] = blocks[:, high] & 15 | nibble << 4
    if kind is Kind.MXFP4:
        blocks[:, 0] = random.integers(115, 122, count)
    if kind is Kind.NVFP4:
        blocks[:, :4] = random.integers(8, 20, (count, 4))
    return blocks


def _half(block: bytes, at: int) -> float:
    return struct.unpack_from("<e", block, at)[0]


def _fives(block: bytes, base: int) -> list[int]:
    """32 quants: four bits in the bytes from `base`+4 on, low halves first; the fifth in the word before."""
    (high,) = struct.unpack_from("<I", block, base)
    nibbles = [byte & 15 for byte in block[base + 4 :]] + [byte >> 4 for byte in block[base + 4 :]]
    return [nibble | (high >> at & 1) << 4 for at, nibble in enumerate(nibbles)]


def q5_0(block: bytes) -> list[float]:
    return [_half(block, 0) * (quant - 16) for quant in _fives(block, 2)]


def q5_1(block: bytes) -> list[float]:
    return [_half(block, 0) * quant + _half(block, 2) for quant in _fives(block, 4)]


def tq2_0(block: bytes) -> list[float]:
    """Two bits a quant: 32 bytes hold 128, in four planes."""
    planes = [(start, shift) for start in (0, 32) for shift in (0, 2, 4, 6)]
    return [_half(block, 64) * ((block[start + at] >> shift & 3) - 1) for start, shift in planes for at in range(32)]


def tq1_0(block: bytes) -> list[float]:
    """Five ternary digits a byte, as a fraction of 256: times 3, what comes out above is the next digit."""
    runs = [(0, 32, 5), (32, 16, 5), (48, 4, 4)]
    digits = [
        ((block[start + at] * 3**power & 255) * 3 >> 8) - 1
        for start, width, powers in runs
        for power in range(powers)
        for at in range(width)
    ]
    return [_half(block, 52) * digit for digit in digits]


def _fours(data: bytes) -> list[float]:
    nibbles = [byte & 15 for byte in data] + [byte >> 4 for byte in data]
    return [E2M1[nibble & 7] * (-1 if nibble & 8 else 1) for nibble in nibbles]


def mxfp4(block: bytes) -> list[float]:
    """Elements e2m1, one e8m0 scale."""
    return [value * 2.0 ** (block[0] - 127) for value in _fours(block[1:])]


def nvfp4(block: bytes) -> list[float]:
    """Elements e2m1; each 16 have a scale e4m3 of their own."""
    values: list[float] = []
    for group in range(4):
        exponent, mantissa = block[group] >> 3, block[group] & 7
        scale = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9
        values += [value * scale for value in _fours(block[4 + 8 * group : 12 + 8 * group])]
    return values


MEANING = {"Q5_0": q5_0, "Q5_1": q5_1, "TQ1_0": tq1_0, "TQ2_0": tq2_0, "MXFP4": mxfp4, "NVFP4": nvfp4}
