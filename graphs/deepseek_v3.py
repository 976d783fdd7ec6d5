"""DeepSeek-V3, V3.1 and R1: MLA, MoE with sigmoid routing and a learned routing bias (DeepSeek-V3 report §2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig, draft_layers
from bringup.graphs.deepseek import NULLS, Deepseek, DeepseekConfig, Defaults, read_deepseek, sparse_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV3Config(DeepseekConfig):
    family: ClassVar[str] = "deepseek_v3"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v3", "kimi_k2")

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        sparse = sparse_layers(fields, layers, dense=3)
        interleaved = fields.get("rope_interleave", bool, True, null=False)
        common = read_v3(fields, sparse, Defaults(max_positions=4096, nulls=NULLS), normalise_null=False)
        return common | {"interleaved": interleaved}


def read_v3(
    fields: Fields, sparse: tuple[bool, ...], absent: Defaults, *, normalise_null: bool | None = None
) -> dict[str, Any]:
    """The fields that V3, V3.2 and GLM-5 read alike. Another routing than that of the published configs is an error."""
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    read_alias(fields, "num_local_experts", "n_routed_experts")
    routing = RoutingConfig.from_fields(
        fields, used=any(sparse), experts=absent.experts, per_token=absent.per_token, groups=absent.groups,
        topk_groups=absent.topk_groups, factor=absent.factor, normalise_null=normalise_null,
    )  # fmt: skip
    return read_deepseek(fields, sparse, absent) | {"routing": routing, "draft_layers": draft_layers(fields)}


class DeepseekV3(Deepseek):
    """DeepSeek-V3: `Deepseek` with its default router."""
