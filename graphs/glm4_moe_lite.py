"""GLM-4.7-Flash: DeepSeek-V3 whose layers with experts are listed, and other sizes.

Names and formulas: transformers' modeling_glm4_moe_lite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bringup.graphs.config.fields import Fields
from bringup.graphs.deepseek import Deepseek, DeepseekConfig, Defaults
from bringup.graphs.deepseek_v3 import read_v3
from bringup.graphs.deepseek_v32 import typed_sparse_layers

ABSENT = Defaults(
    max_positions=202752, expert_ffn=1536, q_rank=768, plain_dim=192, value_dim=256, experts=64, per_token=4,
    factor=1.8, groups=1, topk_groups=1, eps=1e-5, head_dim="any", rope={"partial": 1.0},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4MoeLiteConfig(DeepseekConfig):
    family: ClassVar[str] = "glm4_moe_lite"
    model_types: ClassVar[tuple[str, ...]] = ("glm4_moe_lite",)

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        sparse = typed_sparse_layers(fields, layers, dense=1)
        interleaved = fields.get("rope_interleave", bool, True)
        common = read_v3(fields, sparse, ABSENT)
        if (part := common["rope"].partial) != 1:
            message = f"`partial_rotary_factor` is {part:g}; all channels of `qk_rope_head_dim` are rotated"
            fields.error("BU122", message, "partial_rotary_factor")
        return common | {"interleaved": interleaved}


class Glm4MoeLite(Deepseek):
    """GLM-4.7-Flash: `Deepseek` with its default router."""
