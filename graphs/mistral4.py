"""Mistral 4: MLA whose queries grow with their position, MoE with softmax routing in groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.config.query_growth import OF_ROPE, read_growth
from bringup.graphs.deepseek import Deepseek, DeepseekConfig, Defaults, read_deepseek, sparse_layers
from bringup.graphs.layers.moe_shared import SoftmaxRouter
from bringup.shown import shown

ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
ABSENT = Defaults(
    max_positions=1 << 20, q_rank=1024, kv_rank=256, plain_dim=64, nulls=("num_key_value_heads",), head_dim="all",
    rope={"absent": ROPE, "further": (*OF_ROPE, "partial_rotary_factor")},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistral4Config(DeepseekConfig):
    family: ClassVar[str] = "mistral4"
    model_types: ClassVar[tuple[str, ...]] = ("mistral4",)

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        fields.only("scoring_func", "softmax")
        read_alias(fields, "num_local_experts", "n_routed_experts")
        sparse = sparse_layers(fields, layers, dense=0)
        routing = RoutingConfig.from_fields(
            fields, used=any(sparse), experts=128, per_token=4, groups=1, topk_groups=1, factor=1.0,
            normalise_null=False,
        )  # fmt: skip
        common = read_deepseek(fields, sparse, ABSENT)
        rotary, d = common["head_dim"], common["head_dim"] + common["plain_dim"]
        return common | {
            "interleaved": fields.get("rope_interleave", bool, True, null=False),
            "growth": read_growth(
                fields, ROPE, ABSENT.max_positions, check=lambda rope: _check_share(fields, rope, rotary, d)
            ),
            "routing": replace(routing, bias=False),
        }


def _check_share(fields: Fields, rope: Fields, rotary: int, d: int) -> None:
    """Reports BU122 if the settings of rope do not rotate `rotary` of `d` channels."""
    share = rope.get("partial_rotary_factor", float, rotary / d)
    if rope.valid("partial_rotary_factor") and int(d * share) != rotary and not fields.doubtful:
        message = f"`partial_rotary_factor` is {shown(share)}; of {d} channels, `qk_rope_head_dim` {rotary} are rotated"
        rope.error("BU122", message, "partial_rotary_factor")


class Mistral4(Deepseek):
    router = SoftmaxRouter
