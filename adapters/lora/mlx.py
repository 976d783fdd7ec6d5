"""adapter_config.json as mlx-lm writes it: the arguments of its training.

Source: mlx_lm/tuner/utils.py (`linear_to_lora_layers`, `load_adapters`) of ml-explore/mlx-lm. B · A is multiplied by
`scale` directly; `keys` are modules of a layer, by default all linear ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bringup.adapters.lora.config import MERGE, LoraConfig, is_alpha
from bringup.diagnostics import Diagnostic, fail
from bringup.shown import shown

MOST_RANK = 1 << 31  # no matrix has as many rows


def is_mlx(words: Mapping[str, Any]) -> bool:
    return "lora_parameters" in words and "peft_type" not in words


def read_mlx_config(words: Mapping[str, Any], file: str) -> tuple[LoraConfig, list[Diagnostic]]:
    """The config, and BU161 for a method that is neither LoRA nor DoRA. Raises BU160."""
    kind = words.get("fine_tune_type", "lora")
    found = words["lora_parameters"]
    parameters = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    rank, scale = parameters.get("rank"), parameters.get("scale")
    if type(rank) is not int or not 0 < rank <= MOST_RANK or not is_alpha(scale):
        message = (
            f"`lora_parameters` in `{file}` is {shown(cast(Any, found))}; expected `rank`, an integer above 0, and "
        )
        message += "`scale`, a number other than 0 in the range of float32"
        raise fail("BU160", message, help="use the file that was saved with the adapter", file=file)
    refused = Diagnostic(
        code="BU161", message=f"`fine_tune_type` = {shown(kind)} is not LoRA", help=MERGE, file=file
    )  # fmt: skip
    dora = kind == "dora"
    config = LoraConfig(rank=rank, alpha=cast("float", scale) * rank, dora=dora, more=("fine_tune_type",) * dora)
    return config, [] if dora or kind == "lora" else [refused]
