"""The settings of sigmoid routing in the configs of DeepSeek-V3 and GLM-4.5, and Qwen's keys for experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import MOST_EXPERTS, Fields
from bringup.shown import shown

NO_KEYS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """A token is routed to `per_token` experts of the `topk_groups` best of `groups`. `normalise` divides their weights
    by their sum, to which `eps` is added; weights are multiplied by `factor`. `bias`: the selection has a learned
    bias."""

    experts: int
    per_token: int
    groups: int
    topk_groups: int
    normalise: bool
    factor: float
    bias: bool = True
    eps: float = 1e-20

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
        normalise: bool = True,
        normalise_null: bool | None = None,
        factor_null: float | None = None,
        used: bool = True,
        keys: Mapping[str, str] = NO_KEYS,
    ) -> Self:
        """From config.json; the keyword arguments are the family's defaults for absent keys.

        `normalise_null` is the value of a null `norm_topk_prob`, and `factor_null` that of a null
        `routed_scaling_factor`; None reports it as an error. `used`: a layer has experts. `keys` maps DeepSeek's keys
        to the family's own.
        """
        if not used:
            return cls.unused(fields)

        def key(name: str) -> str:
            return keys.get(name, name)

        experts = fields.experts(key("n_routed_experts"), experts)
        groups = fields.size(key("n_group"), groups)
        topk, per_token = (
            fields.size(key("topk_group"), topk_groups),
            fields.size(key("num_experts_per_tok"), per_token),
        )
        if not fields.doubtful:
            if experts < 2 * groups or experts % groups:
                message = f"{experts} experts do not make {groups} groups of the same size, 2 experts or more"
                fields.error("BU121", message, key("n_group"), stops="")
            elif topk > groups:
                message = f"`{key('topk_group')}` is {topk}, but there are {groups} groups"
                fields.error("BU121", message, key("topk_group"), stops="")
            elif per_token > experts // groups * topk:
                message = f"a token cannot go to {per_token} of the {experts // groups * topk} experts of {topk} groups"
                fields.error("BU121", message, key("num_experts_per_tok"), stops="")
        return cls(
            experts=experts,
            per_token=per_token,
            groups=groups,
            topk_groups=topk,
            normalise=fields.get(key("norm_topk_prob"), bool, normalise, null=normalise_null),
            factor=fields.get(key("routed_scaling_factor"), float, factor, null=factor_null),
        )

    @classmethod
    def unused(cls, fields: Fields) -> Self:
        """A stand-in for a model that has no layer with experts: transformers builds it whatever the settings are."""
        fields.read |= {"n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob"}
        fields.read |= {"routed_scaling_factor", "topk_method"}
        return cls(experts=2, per_token=1, groups=1, topk_groups=1, normalise=True, factor=1.0)


def draft_layers(fields: Fields) -> int:
    """The number of layers of the checkpoint after the model's last: they predict further tokens."""
    read_alias(fields, "num_nextn_predict_layers", "num_mtp_layers", null=True)
    return fields.get("num_mtp_layers", int, 1, null=0)


def sparse_layers(fields: Fields, layers: int, experts: int) -> tuple[bool, ...]:
    """Whether each layer has experts: every `decoder_sparse_step`-th, except those of `mlp_only_layers`.

    Without experts (`experts` 0) every layer has a dense MLP, as in transformers.
    """
    dense, stride = fields.indices("mlp_only_layers"), fields.size("decoder_sparse_step", 1)
    return tuple(experts > 0 and index not in dense and (index + 1) % stride == 0 for index in range(layers))


def listed_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts, by `mlp_layer_types`; empty if the config has none."""
    types = fields.strings("mlp_layer_types")
    if types is None:
        return ()
    if len(types) != layers or not set(types) <= {"dense", "sparse"}:
        message = f"`mlp_layer_types` is {shown(types)}; {layers} of dense or sparse are needed"
        fields.error("BU122", message, "mlp_layer_types")
        return ()
    return tuple(kind == "sparse" for kind in types)


def read_shared_experts(fields: Fields, experts: int, *, ffn: int, shared: int, per_token: int) -> dict[str, Any]:
    """The sizes of routed experts and of a shared one, by Qwen's keys; the settings are the family's defaults.

    `expert_ffn` is the width of each routed expert, `shared_ffn` that of the shared one.
    """
    return dict(
        expert_ffn=fields.size("moe_intermediate_size", ffn),
        shared_ffn=fields.size("shared_expert_intermediate_size", shared),
        num_experts=experts,
        experts_per_token=fields.size("num_experts_per_tok", per_token, maximum=experts or MOST_EXPERTS),
    )
