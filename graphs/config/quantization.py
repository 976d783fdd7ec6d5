"""What a config says of weights that are stored as float8 with one scale a block, as DeepSeek-V3 publishes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.shown import shown

Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fp8:
    """Rows and columns of the `block`s that share a scale, and the modules that are `unquantized` as they were."""

    block: Block
    unquantized: UnquantizedModules


def read_fp8(fields: Fields, matrices: Iterable[str]) -> Fp8 | None:
    """From `quantization_config`; None where there is none, or where it keeps all of a graph's `matrices`.

    How others are stored is then nothing to the graph: a draft whose layer is kept can stand beside a model in a form
    that nobody here reads. The words are those of transformers' `FineGrainedFP8Config`. A matrix `x.weight` that is not
    kept comes with `x.weight_scale_inv`, what its elements are multiplied by. How activations would be rounded
    (`activation_scheme`) is not followed: weights are dequantised. `scale_fmt` says only which values scales have.
    Notes BU122 for another method.
    """
    words = fields.group("quantization_config")
    if not words:
        return None
    inner = Fields(words, f"{fields.family} quantization")
    unquantized = UnquantizedModules.from_fields(inner)
    if all(matrix in unquantized for matrix in matrices):
        fields.findings += inner.findings
        return None
    inner.only("quant_method", "fp8")
    if inner.findings:  # the other words are not fp8's
        fields.findings += inner.findings
        return None
    inner.only("fmt", "e4m3")
    inner.only("activation_scheme", "dynamic")
    inner.only("scale_fmt", "float", "ue8m0")
    block = _pair(inner)
    inner.read |= {"weight_block_size"}
    fields.findings += inner.done()
    return Fp8(block, unquantized)


def _pair(inner: Fields) -> Block:
    value = cast("object", inner.raw.get("weight_block_size"))
    match value:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            message = f"config key `weight_block_size` is {shown(value)}; two whole numbers are needed, as [128, 128]"
            inner.error("BU121", message, "weight_block_size")
            return 128, 128
