"""DeepSeek-V2, V2-Lite and V2.5: multi-head latent attention (MLA), MoE with softmax routing (report, section 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.deepseek import NULLS, Deepseek, DeepseekConfig, Defaults, read_deepseek, sparse_layers
from bringup.graphs.layers.moe_shared import SoftmaxRouter

ABSENT = Defaults(max_positions=2048, expert_ffn=1407, shared_experts=2, nulls=NULLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV2Config(DeepseekConfig):
    family: ClassVar[str] = "deepseek_v2"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v2",)

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        fields.only("scoring_func", "softmax")
        read_alias(fields, "num_experts", "n_routed_experts")
        sparse = sparse_layers(fields, layers, dense=0)
        return read_deepseek(fields, sparse, ABSENT) | {
            "mlp_bias": fields.get("mlp_bias", bool, False),
            "routing": _routing(fields) if any(sparse) else RoutingConfig.unused(fields),
        }


def _routing(fields: Fields) -> RoutingConfig:
    """The routing by `topk_method`: among the groups that `group_limited_greedy` selects, or among all experts.

    In the published code (deepseek-ai/DeepSeek-V2, modeling_deepseek.py), `norm_topk_prob` normalises weights to a sum
    of 1. transformers does not read it. It is false in every published config; true is a warning.
    """
    if fields.get("norm_topk_prob", bool, False, null=False):
        differs = "the published code divides the experts' weights by their sum"
        fields.ignored("norm_topk_prob", True, differs)
    if fields.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") == "greedy":
        fields.read |= {"n_group", "topk_group"}
        experts = fields.experts("n_routed_experts", 64)
        per_token = fields.size("num_experts_per_tok", maximum=experts)
        factor = fields.get("routed_scaling_factor", float, 1.0)
        return RoutingConfig(
            experts=experts, per_token=per_token, groups=1, topk_groups=1, normalise=False, factor=factor, bias=False
        )
    per_token = fields.size("num_experts_per_tok")
    routing = RoutingConfig.from_fields(
        fields, experts=64, per_token=per_token, groups=1, topk_groups=1, factor=1.0, normalise_null=False
    )
    return replace(routing, normalise=False, bias=False)


class BestExpertRouter(SoftmaxRouter):
    """The score of a group is that of its best expert (report, section 2.2.2)."""

    best = 1


class DeepseekV2(Deepseek):
    router = BestExpertRouter
