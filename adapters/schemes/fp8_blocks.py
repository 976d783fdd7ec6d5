"""float8 with one scale a block, as DeepSeek-V3 and Qwen3 are published (transformers' `FineGrainedFP8Config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.arrays import ACTIVATIONS, CACHES, E4M3, scaled
from bringup.adapters.schemes.scheme import Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Block
from bringup.shown import shown


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


def read(words: Fields) -> Fp8Blocks:
    """How activations would be rounded (`activation_scheme`) is not followed: weights are dequantised.

    `scale_fmt` says only which values scales have.
    """
    unquantized = UnquantizedModules.from_fields(words)
    words.only("fmt", "e4m3")
    words.only("activation_scheme", "dynamic", "static")
    words.only("scale_fmt", "float", "ue8m0")
    return Fp8Blocks(_block(words), unquantized)


def _block(words: Fields) -> Block:
    value = cast("object", words.raw.get("weight_block_size"))
    words.read |= {"weight_block_size"}
    match value:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            message = f"config key `weight_block_size` is {shown(value)}; two whole numbers are needed, as [128, 128]"
            words.error("BU121", message, "weight_block_size")
            return 128, 128
