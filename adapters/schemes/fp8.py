"""float8 with one scale for each matrix, row or block.

Published by AutoFP8 and llm-compressor as `quant_method: fp8` (`weight_scale` a scalar; `activation_scheme` static
adds `input_scale`), and by FBGEMM as `fbgemm_fp8` (`weight_scale` [out, 1]; transformers' `FbgemmFp8Config`).
In blocks as DeepSeek-V3 and Qwen3 are published (`FineGrainedFP8Config`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.arrays import ACTIVATIONS, BY_MATRIX, BY_ROW, CACHES, E4M3, scaled
from bringup.adapters.schemes.scheme import Scheme, Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Block
from bringup.shown import shown
from bringup.spec import Shape

USUAL: Block = (128, 128)


@dataclass(frozen=True, slots=True)
class Fp8Blocks(Stored):
    """`block`: rows and columns that share a scale; an element is the payload times the scale of its block."""

    scheme: ClassVar[str] = "FP8 with one scale a block"
    parts: ClassVar[tuple[str, ...]] = ("weight", "weight_scale_inv", "weight_scale")
    unread: ClassVar[Mapping[str, str]] = {**ACTIVATIONS, **CACHES}
    keeps_order: ClassVar[bool] = True
    block_key: ClassVar[str] = "weight_block_size"
    block: Block
    unquantized: UnquantizedModules

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        scales = "weight_scale" if "weight_scale" in weight.tensors else "weight_scale_inv"
        return scaled(self.scheme, weight, E4M3, self.block, scales)


@dataclass(frozen=True, slots=True)
class Fp8(Stored):
    """`block` shares a scale; used if no tensor shows it, as with dummy weights."""

    scheme: ClassVar[str] = "FP8 with one scale a tensor or row"
    parts: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_scale_inv")
    unread: ClassVar[Mapping[str, str]] = {**ACTIVATIONS, **CACHES}
    keeps_order: ClassVar[bool] = True
    block: Block
    unquantized: UnquantizedModules

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        scales = "weight_scale_inv" if "weight_scale_inv" in weight.tensors else "weight_scale"
        found = weight.tensors.get(scales)
        block = self.block if found is None else _block(found.shape)
        return scaled(self.scheme, weight, E4M3, block, scales)


def _block(scales: Shape) -> Block:
    """The block that shares a scale: the matrix, a row, or, the default of transformers, 128 x 128 values."""
    if math.prod(scales) == 1:
        return BY_MATRIX
    return BY_ROW if len(scales) == 1 or scales[1:] == (1,) else USUAL


def read(words: Fields) -> Stored:
    """One scale for each block, row or matrix; activations are not rounded, whatever `activation_scheme` is.

    The default of `weight_block_size` is [128, 128] in transformers 5.23 and one scale for each matrix in vLLM: the
    tensors show which applies.
    """
    words.only("activation_scheme", "dynamic", "static")
    words.get("dequantize", bool, False)  # whether transformers dequantises the weights when it loads them
    words.only("expert_dtype", "fp8")
    words.only("modules_to_convert", None)
    if words.raw.get("weight_block_size") is not None:
        return _read_blocks(words)
    words.read |= {"weight_block_size", "activation_scale_ub"}
    words.only("fmt", "e4m3")
    words.only("scale_fmt", "float")
    by_row = words.raw.get("quant_method") == "fbgemm_fp8"
    return Fp8(BY_ROW if by_row else BY_MATRIX, UnquantizedModules.from_fields(words))


def _read_blocks(words: Fields) -> Fp8Blocks:
    """Ignores how activations would be rounded (`activation_scheme`): weights are dequantised.

    `scale_fmt` only restricts the values of scales.
    """
    unquantized = UnquantizedModules.from_fields(words)
    words.only("fmt", "e4m3")
    words.only("scale_fmt", "float", "ue8m0")
    return Fp8Blocks(_block_size(words), unquantized)


def _block_size(words: Fields) -> Block:
    value = cast("object", words.raw.get("weight_block_size"))
    words.read |= {"weight_block_size"}
    match value:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            message = f"config key `weight_block_size` is {shown(value)}; two integers are needed, as [128, 128]"
            words.error("BU121", message, "weight_block_size")
            return 128, 128


scheme = Scheme(
    name=Fp8.scheme,
    methods=("fp8", "fbgemm_fp8"),
    read=read,
    dequantise="transformers: `from_pretrained(…, quantization_config=FineGrainedFP8Config(dequantize=True))`, then "
    "`save_pretrained`",
)
