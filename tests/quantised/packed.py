"""Matrices as AutoAWQ, AutoGPTQ and bitsandbytes store them, written element by element, and dequantised.

Each function accepts float32 [out, in]. It returns the tensors by the ends of their names, and float32 [out, in]: the
matrix that the format's own code dequantises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

Tensors = dict[str, np.ndarray]


def _grouped(matrix: np.ndarray, groups: np.ndarray, bits: int, *, sym: bool) -> tuple[np.ndarray, ...]:
    """Codes [out, in], zero points and scales [out, group] in float16: round to nearest in each group of columns."""
    out, most = len(matrix), (1 << bits) - 1
    codes = np.zeros(matrix.shape, np.int64)
    zeros = np.zeros((out, groups.max() + 1), np.int64)
    scales = np.zeros(zeros.shape, np.float16)
    for group in range(zeros.shape[1]):
        part = matrix[:, groups == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if sym:
            high = np.maximum(-low, high)
            low = -high
        scales[:, group] = np.maximum((high - low) / most, 1e-4)
        by = scales[:, group].astype(np.float32)
        zeros[:, group] = (most + 1) // 2 if sym else np.clip(np.rint(-low / by), 0, most)
        rounded = np.rint(part / by[:, None]) + zeros[:, group, None]
        codes[:, groups == group] = np.clip(rounded, 0, most)
    return codes, zeros, scales


def _values(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return (codes - zeros[:, groups]).astype(np.float32) * scales.astype(np.float32)[:, groups]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(matrix: np.ndarray, group: int) -> tuple[Tensors, np.ndarray]:
    """AutoAWQ, awq/modules/linear/gemm.py, `WQLinear_GEMM.from_linear`; group -1 is a whole row."""
    groups = np.arange(matrix.shape[1]) // (matrix.shape[1] if group == -1 else group)
    codes, zeros, scales = _grouped(matrix, groups, 4, sym=False)
    tensors = {
        "qweight": _awq_words(codes.T),
        "qzeros": _awq_words(zeros.T),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, _values(codes, zeros, scales, groups)


def _awq_words(numbers: np.ndarray) -> np.ndarray:
    words = np.zeros((len(numbers), numbers.shape[1] // 8), np.int32)
    for row in range(words.shape[0]):
        for column in range(words.shape[1]):
            word = 0
            for place, which in enumerate(AWQ_ORDER):
                word |= int(numbers[row, column * 8 + which]) << (4 * place)
            words[row, column] = _signed(word)
    return words


def gptq(
    matrix: np.ndarray, bits: int, group: int, *, sym: bool = False, act_order: bool = False, version: int = 1
) -> tuple[Tensors, np.ndarray]:
    """AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py, `QuantLinear.pack` and `forward`.

    Version 1 stores zero - 1, which `forward` adds modulo 2^bits; GPTQModel's `gptq_v2` stores zero.
    """
    columns = matrix.shape[1]
    groups = np.arange(columns) // (columns if group == -1 else group)
    if act_order:
        groups = groups[np.random.default_rng(columns).permutation(columns)]
    codes, zeros, scales = _grouped(matrix, groups, bits, sym=sym)
    stored = (zeros - 1) % (1 << bits) if version == 1 else zeros
    tensors = {
        "qweight": np.stack([_gptq_words(column, bits) for column in codes], 1),
        "qzeros": np.stack([_gptq_words(row, bits) for row in stored.T]),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": groups.astype(np.int32),
    }
    return tensors, _values(codes, zeros, scales, groups)


def _gptq_words(numbers: Sequence[int] | np.ndarray, bits: int) -> np.ndarray:
    """The loops of `pack`: three-bit numbers 10 and 21 of 32 lie across words."""
    values, words, at = [int(number) for number in numbers], list[int](), 0
    while at < len(values):
        if bits != 3:
            each = 32 // bits
            words.append(sum(value << (bits * place) for place, value in enumerate(values[at : at + each])))
            at += each
            continue
        some = values[at : at + 32]
        first = sum(value << (3 * place) for place, value in enumerate(some[:10])) | some[10] << 30
        second = some[10] >> 2 & 1
        second |= sum(value << (3 * place + 1) for place, value in enumerate(some[11:21])) | some[21] << 31
        third = some[21] >> 1 & 3
        third |= sum(value << (3 * place + 2) for place, value in enumerate(some[22:32]))
        words += [first & 0xFFFFFFFF, second & 0xFFFFFFFF, third]
        at += 32
    return np.array([_signed(word) for word in words], np.int32)


def int8(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """bitsandbytes/functional.py, `int8_vectorwise_quant` and `int8_vectorwise_dequant`."""
    largest = np.abs(matrix).max(1).astype(np.float32)
    codes = np.rint(matrix * (127 / largest[:, None])).astype(np.int8)
    values = codes.astype(np.float32) * largest[:, None] * np.float32(7.874015718698502e-3)
    return {"weight": codes, "SCB": largest, "weight_format": np.zeros((), np.uint8)}, values


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3))


def four_bits(matrix: np.ndarray, kind: str, block: int = 64, *, nested: bool = False) -> tuple[Tensors, np.ndarray]:
    """bitsandbytes/functional.py, `quantize_4bit`, `dequantize_4bit` and `QuantState.as_dict(packed=True)`."""
    table = np.array(NF4 if kind == "nf4" else FP4, np.float32)
    flat = matrix.reshape(-1).astype(np.float32)
    starts = range(0, len(flat), block)
    largest = np.array([np.abs(flat[at : at + block]).max() for at in starts], np.float32)
    state: dict[str, object] = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(matrix.shape)}
    tensors: Tensors = {}
    if nested:
        offset = float(largest.mean())
        inner = np.sort(np.random.default_rng(0).uniform(-1, 1, 256)).astype(np.float32)
        outer = [np.abs(largest[at : at + 256] - offset).max() for at in range(0, len(largest), 256)]
        outer = np.array(outer, np.float32)
        codes = [int(np.abs(inner - (x - offset) / outer[at // 256]).argmin()) for at, x in enumerate(largest)]
        largest = np.array([inner[code] * outer[at // 256] + np.float32(offset) for at, code in enumerate(codes)])
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {
            "weight.absmax": np.array(codes, np.uint8),
            "weight.nested_absmax": outer,
            "weight.nested_quant_map": inner,
        }
    else:
        tensors["weight.absmax"] = largest
    codes = [int(np.abs(table - x / largest[at // block]).argmin()) for at, x in enumerate(flat)]
    values = np.array([table[code] * largest[at // block] for at, code in enumerate(codes)], np.float32)
    high, low = codes[0::2], [*codes[1::2], *([0] * (len(codes) % 2))]
    tensors |= {
        "weight": np.array([a << 4 | b for a, b in zip(high, low, strict=True)], np.uint8)[:, None],
        "weight.quant_map": table,
        f"weight.quant_state.bitsandbytes__{kind}": np.frombuffer(json.dumps(state).encode(), np.uint8).copy(),
    }
    return tensors, values.reshape(matrix.shape)
