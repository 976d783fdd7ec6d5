"""The drafts of Qwen3-Next and Qwen3.5 as published: tensors `mtp.…` of the main model's checkpoint."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S
from bringup.adapters.hybrid import add_layers
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.adapters.qwen3_5 import PLACES
from bringup.adapters.shared_experts import add_shared_experts
from bringup.graphs.hybrid import HybridMoeConfig
from bringup.graphs.qwen3_mtp import Qwen3MtpConfig

AT = "mtp."
NORMS = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}


def adapter(config: Qwen3MtpConfig) -> Adapter:
    """Embedding and head are the main model's. `mtp.fc` is not quantised, even if the config does not state it: SGLang
    has no other form of it, and vLLM none for NVFP4 (pull request 38832). The experts of Qwen3.5's drafts are one
    tensor for each matrix, although those of its layers are in one tensor: either form is read.
    """
    block = config.block
    draft = Adapter("qwen3_mtp", defaults=("out in", "vocab m"), prefix="model.", wrappers=PLACES, unprefixed=("mtp",))
    for name, stored in NORMS.items():
        draft[f"model.{name}.weight"] = S(f"{AT}{stored}.weight")
    draft["model.eh_proj.weight"] = S(f"{AT}fc.weight", plain=True)
    draft["model.embed_tokens.weight"] = S("embed_tokens.weight")
    draft["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=block.tied_head)
    add_layers(draft, AT)
    if isinstance(block, HybridMoeConfig):
        add_shared_experts(draft, block.num_experts, fused=True, at=AT)
    why = f"of the model that is drafted for: `{block.family}`"
    draft.drop("layers.{L}.{rest:**}", why=why)
    draft.drop("norm.weight", why=why)
    draft.drop("visual.{rest:**}", why="the vision model's; this graph is a draft of the language model")
    drop_rope_tables(draft, f"{AT}layers.{{L}}.self_attn.rotary_emb", f"{AT}rotary_emb", "rotary_emb")
    return draft
