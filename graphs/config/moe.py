"""The settings of sigmoid routing in the configs of DeepSeek-V3 and GLM-4.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bringup.graphs.config.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """A token is routed to `per_token` experts of the `topk_groups` best of `groups`. `normalise` divides their weights
    by their sum; weights are multiplied by `factor`."""

    experts: int
    per_token: int
    groups: int
    topk_groups: int
    normalise: bool
    factor: float

    @classmethod
    def from_fields(
        cls,
        fields: Fields,
        *,
        experts: int,
        per_token: int,
        groups: int,
        topk_groups: int,
        factor: float,
        normalise_null: bool | None = None,
    ) -> Self:
        """From config.json; the keyword arguments are the family's defaults for absent keys.

        `normalise_null` is the value of a null `norm_topk_prob`; None reports it as an error.
        """
        experts = fields.experts("n_routed_experts", experts)
        groups = fields.size("n_group", groups)
        topk, per_token = fields.size("topk_group", topk_groups), fields.size("num_experts_per_tok", per_token)
        if not fields.doubtful:
            if experts < 2 * groups or experts % groups:
                message = f"{experts} experts do not make {groups} groups of the same size, 2 experts or more"
                fields.error("BU121", message, "n_group", stops="")
            elif topk > groups:
                message = f"`topk_group` is {topk}, but there are {groups} groups"
                fields.error("BU121", message, "topk_group", stops="")
            elif per_token > experts // groups * topk:
                message = f"a token cannot go to {per_token} of the {experts // groups * topk} experts of {topk} groups"
                fields.error("BU121", message, "num_experts_per_tok", stops="")
        return cls(
            experts=experts,
            per_token=per_token,
            groups=groups,
            topk_groups=topk,
            normalise=fields.get("norm_topk_prob", bool, True, null=normalise_null),
            factor=fields.get("routed_scaling_factor", float, factor),
        )
