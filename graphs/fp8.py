"""What a config says of weights that are stored as float8 with one scale a block, as DeepSeek-V3 publishes them."""

from __future__ import annotations

from typing import cast

from bringup.graphs.config import Fields
from bringup.shown import shown

Block = tuple[int, int]

# Modules that stay as they are: what converters may list in `modules_to_not_convert`, by the last part of their names.
PLAIN = frozenset({"lm_head", "embed_tokens", "gate", "norm", "weights_proj", "k_norm"})


def fp8_block(fields: Fields) -> Block | None:
    """Rows and columns of the blocks that share a scale, from `quantization_config`; None where there is none.

    The words are those of transformers' `FineGrainedFP8Config`. A matrix `x.weight` then comes with
    `x.weight_scale_inv`, what its elements are multiplied by. How activations would be rounded (`activation_scheme`)
    is not followed: weights are dequantised. `scale_fmt` says only which values scales have.
    """
    words = fields.group("quantization_config")
    if not words:
        return None
    inner = Fields(words, f"{fields.family} quantization")
    for key, allowed in (("quant_method", "fp8"), ("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        inner.only(key, allowed)
    inner.only("scale_fmt", "float", "ue8m0")
    kept = inner.words("modules_to_not_convert") or []
    if others := [name for name in kept if name.rpartition(".")[2] not in PLAIN and not name.endswith("layernorm")]:
        said = f"`modules_to_not_convert` has {shown(others[0])}; the adapter takes every matrix there as quantised"
        inner.error("BU122", said, "modules_to_not_convert")
    sizes = _pair(inner)
    inner.read |= {"weight_block_size"}
    fields.findings += inner.done()
    return sizes


def _pair(inner: Fields) -> Block:
    value = cast("object", inner.raw.get("weight_block_size"))
    match value:
        case [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            said = f"config key `weight_block_size` is {shown(value)}; two whole numbers are needed, as [128, 128]"
            inner.error("BU121", said, "weight_block_size")
            return 128, 128
