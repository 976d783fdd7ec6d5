"""DeepSeek-V3, V3.2, GLM-4.7-Flash and GLM-5 drafts: a multi-token-prediction (MTP) layer, run after the model.

Source: DeepSeek-V3 report, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.diagnostics import fail
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.hf_config import BlockConfig
from bringup.graphs.config.moe import draft_layers
from bringup.graphs.deepseek import Deepseek, DeepseekConfig
from bringup.graphs.deepseek_v3 import DeepseekV3, DeepseekV3Config
from bringup.graphs.deepseek_v32 import DeepseekV32, DeepseekV32Config
from bringup.graphs.glm4_moe_lite import Glm4MoeLite, Glm4MoeLiteConfig
from bringup.graphs.glm_moe_dsa import GlmMoeDsa, GlmMoeDsaConfig
from bringup.graphs.mtp import Mtp
from bringup.shown import short

# The class of the draft's layer for each `model_type`.
BLOCKS: dict[str, tuple[type[DeepseekConfig], type[Deepseek]]] = {
    "deepseek_v3": (DeepseekV3Config, DeepseekV3),
    "deepseek_v32": (DeepseekV32Config, DeepseekV32),
    "glm4_moe_lite": (Glm4MoeLiteConfig, Glm4MoeLite),
    "glm_moe_dsa": (GlmMoeDsaConfig, GlmMoeDsa),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekMtpConfig(BlockConfig):
    """`block` is the main model's config, for the draft's layer alone. `depth`: which of several drafts, from 1 on.

    Draft k predicts the token k positions after the one that the main model predicts. The published models have one
    draft; for another than the first, config.json has `mtp_depth`, a key of bringup's own.
    """

    family: ClassVar[str] = "deepseek_mtp"

    block: DeepseekConfig
    depth: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """From the main model's config.json. Raises BU125 if its `model_type` is not in BLOCKS."""
        kind = fields.get("model_type", str, "deepseek_v3")
        if kind not in BLOCKS:
            known = ", ".join(f"`{name}`" for name in BLOCKS)
            raise fail("BU125", f"no graph supports the draft of `{short(kind)}`; those of {known} are known")
        drafts = draft_layers(fields)
        if drafts < 1:
            fields.error("BU121", f"`num_mtp_layers` is {drafts}: the checkpoint has no draft", "num_mtp_layers")
        depth = fields.size("mtp_depth", 1, maximum=max(1, drafts))
        number = fields.layers("num_hidden_layers") + depth - 1
        return cls(block=BLOCKS[kind][0].of_layers(fields, range(number, number + 1)), depth=depth)


class DeepseekMtp(Mtp):
    """Row i of draft k reads token i + k, and the hidden state at row i: of the model for draft 1, else of draft k - 1.

    The report does not define which hidden state that is; here it is the input `hidden`. The layer was trained with
    the output of the last norm, which is the input of the head: `--aux-hidden 61` of DeepSeek-V3, and `--aux-hidden 1`
    of a draft that another one follows. vLLM and SGLang pass it to the first draft. For later drafts vLLM (until pull
    request 45895) and ATOM (until 1764) passed the input of that norm, and fewer tokens were accepted. vLLM also
    replaces the embedding at position 0 with zeros; bringup does not.
    """

    def __init__(self, config: DeepseekMtpConfig, dtype: str = "float32") -> None:
        super().__init__(config, config.block, BLOCKS[config.block.family][1](config.block, dtype))
