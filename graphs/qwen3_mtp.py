"""Qwen3-Next, Qwen3.5, 3.6 and 3.8 drafts: a multi-token-prediction (MTP) layer, run after the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from bringup.diagnostics import fail
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import BlockConfig
from bringup.graphs.hybrid import Hybrid, HybridConfig, HybridMoeConfig
from bringup.graphs.mtp import Mtp
from bringup.graphs.qwen3_5 import Qwen3_5, Qwen3_5Config
from bringup.graphs.qwen3_5_moe import Qwen3_5Moe, Qwen3_5MoeConfig
from bringup.graphs.qwen3_next import Qwen3Next, Qwen3NextConfig
from bringup.shown import short

# The classes of the draft's layer for the config of each main model.
BLOCKS: dict[type[HybridConfig], type[Hybrid]] = {
    Qwen3NextConfig: Qwen3Next,
    Qwen3_5Config: Qwen3_5,
    Qwen3_5MoeConfig: Qwen3_5Moe,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MtpConfig(BlockConfig):
    """`block` is the main model's config, for the draft's layer alone: one with attention."""

    family: ClassVar[str] = "qwen3_mtp"

    block: HybridConfig

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """From the main model's config.json. Raises BU125 if no class of BLOCKS has its `model_type`.

        If only some layers of the main model have experts, the draft's has those of layer 0, as in vLLM and SGLang.
        """
        name = fields.get("model_type", str, "qwen3_next")
        kind = next((each for each in BLOCKS if name in each.model_types), None)
        if kind is None:
            known = " and ".join(f"`{each.model_types[0]}`" for each in BLOCKS)
            raise fail("BU125", f"no graph supports the draft of `{short(name)}`; those of {known} are known")
        main = kind.from_fields(fields)
        _check_draft(fields)
        block = replace(main, windows=(None,), recurrent=(False,))
        return cls(block=replace(block, sparse=block.sparse[:1]) if isinstance(block, HybridMoeConfig) else block)


def _check_draft(fields: Fields) -> None:
    """Reports the keys on the draft that differ from those of published models. Qwen3-Next has none."""
    at = "text_config" if "text_config" in fields.raw else ""
    keys = fields.group(at) if at else fields.raw
    draft = Fields(keys, fields.family, fields.allowed, at=f"{at}." if at else "")
    draft.only("mtp_num_hidden_layers", 1)
    draft.only("mtp_use_dedicated_embeddings", False)
    fields.findings += [found for found in draft.findings if fields.valid(found.parameter)]


class Qwen3Mtp(Mtp):
    """Row i reads token i + 1, and the hidden state at row i: of the model, and after its own proposals of the draft.

    No report defines which hidden state that is; here it is the input `hidden`. The layer was trained with the output
    of the last norm, which is the input of the head: `--aux-hidden 48` of Qwen3-Next, and `--aux-hidden 1` of the draft
    itself. vLLM and SGLang pass it; llama.cpp did not until its pull request 24025, and fewer tokens were accepted.
    """

    def __init__(self, config: Qwen3MtpConfig, dtype: str = "float32") -> None:
        super().__init__(config, config.block, BLOCKS[type(config.block)](config.block, dtype))
