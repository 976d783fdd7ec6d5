"""The keys that DeepSeek's and GLM-4.5's files share: experts and their routing, first dense layers, draft layers.

In llama.cpp (`load_hparams`), the defaults are weights that are not normalised, a factor of 1, one group and no dense
layers. The families' own configs have other defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.adapters.planning.adapter import Adapter

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters

# Keys for None are read by `routing`, or by the selection of the family.
ROUTING: Mapping[str, str | None] = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_gating_func": None,
    "expert_group_count": None,
    "expert_group_used_count": None,
    "expert_weights_norm": None,
    "expert_weights_scale": None,
    "leading_dense_block_count": None,
    "nextn_predict_layers": None,
}


def routing(hyper: Hyperparameters) -> dict[str, Any]:
    """The optional keys, with llama.cpp's defaults; the number of layers without those of a draft, which are last."""
    own = hyper.values
    drafts = own.get("nextn_predict_layers") or 0
    return {
        "n_group": own.get("expert_group_count") or 1,
        "topk_group": own.get("expert_group_used_count") or 1,
        "norm_topk_prob": own.get("expert_weights_norm", False),
        "routed_scaling_factor": own.get("expert_weights_scale") or 1.0,
        "first_k_dense_replace": own.get("leading_dense_block_count", 0),
        "num_hidden_layers": own["block_count"] - drafts if type(drafts) is int else own["block_count"],
        "num_nextn_predict_layers": drafts,
    }


def drop_draft(gguf: Adapter, layers: int) -> None:
    """Drops the layers after the last one, which belong to a draft model."""

    def of_draft(variables: Mapping[str, str]) -> bool:
        return int(variables["L"]) >= layers

    why = "the draft layer that predicts one token further"
    gguf.drop("blk.{L}.{rest:**}", why=why, when=of_draft, requires="blk.{L}.nextn.eh_proj.weight")
