"""Mistral 4: MLA whose queries grow with their position, MoE with softmax routing in groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.deepseek import Deepseek, DeepseekConfig, Defaults, read_deepseek, sparse_layers
from bringup.graphs.layers.moe_shared import SoftmaxRouter
from bringup.shown import shown

ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
OF_ROPE = ("llama_4_scaling_beta", "max_position_embeddings", "partial_rotary_factor")
ABSENT = Defaults(
    max_positions=1 << 20, q_rank=1024, kv_rank=256, plain_dim=64, nulls=("num_key_value_heads",), head_dim="all",
    rope={"absent": ROPE, "further": OF_ROPE},
)  # fmt: skip
SCALED = ("yarn", "llama3", "longrope")  # rope types whose original context is by default the config's


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
        return common | {
            "interleaved": fields.get("rope_interleave", bool, True, null=False),
            "growth": _growth(fields, common["head_dim"], common["head_dim"] + common["plain_dim"]),
            "routing": replace(routing, bias=False),
        }


def _growth(fields: Fields, turned: int, d: int) -> tuple[float, int]:
    """`llama_4_scaling_beta` and the period, keys of rope. Also checks that `turned` of `d` channels are rotated."""
    name = next((key for key in ("rope_scaling", "rope_parameters") if fields.raw.get(key)), "")
    settings = fields.group(name, stops="") if name else ROPE
    if name and not fields.valid(name):
        return 0.0, 1  # a stand-in: an error was reported
    rope = Fields(settings, f"{fields.family} rope", at=f"{fields.path(name)}.")
    share = rope.get("partial_rotary_factor", float, turned / d)
    if rope.valid("partial_rotary_factor") and int(d * share) != turned and not fields.doubtful:
        message = f"`partial_rotary_factor` is {shown(share)}; of {d} channels, `qk_rope_head_dim` {turned} are rotated"
        rope.error("BU122", message, "partial_rotary_factor")
    kind = rope.raw.get("rope_type", rope.raw.get("type"))
    stated = fields.size("max_position_embeddings", ABSENT.max_positions) if kind in SCALED else None
    key = "original_max_position_embeddings"
    period = fields.size(key) if fields.raw.get(key) is not None else rope.size(key, stated)
    growth = rope.get("llama_4_scaling_beta", float), period
    known = {finding.parameter for finding in fields.findings}  # `RopeConfig.from_hf` also reads the original context
    fields.findings += (finding for finding in rope.findings if finding.parameter not in known)
    return growth


class Mistral4(Deepseek):
    router = SoftmaxRouter
