"""The published drafts of DeepSeek-V3, V3.2, GLM-4.7-Flash and GLM-5: layers of a checkpoint after the model's last."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import S
from bringup.adapters.deepseek import add_layers, place
from bringup.adapters.deepseek_v32 import add_indexer
from bringup.adapters.planning.adapter import Adapter, either
from bringup.graphs.deepseek_mtp import DeepseekMtpConfig
from bringup.graphs.deepseek_v32 import DeepseekV32Config


def adapter(config: DeepseekMtpConfig) -> Adapter:
    """vLLM's names for the layer's own tensors contain `mtp_block`. Embedding and head are published twice, for the
    main model and for the draft; if the draft has none, those of the main model are read.
    """
    block, at = config.block, place(config.block)
    draft = Adapter("deepseek_mtp", defaults=("out in", "vocab m"), prefix="model.", infix="mtp_block")
    _drop_others(draft, config)
    draft["model.{n:enorm|hnorm}.weight"] = S(at + "{n}.weight")
    draft["model.eh_proj.weight"] = S(at + "eh_proj.weight", plain=True)
    draft["model.norm.weight"] = S(at + "shared_head.norm.weight")
    draft["model.embed_tokens.weight"] = either(S(at + "embed_tokens.weight"), S("embed_tokens.weight"))
    head = S("embed_tokens.weight" if block.tied_head else "lm_head.weight", "vocab m")
    draft["lm_head.weight"] = either(S(at + "shared_head.head.weight"), head)
    add_layers(draft, block)
    if isinstance(block, DeepseekV32Config):
        add_indexer(draft, block)
    return draft


def _drop_others(draft: Adapter, config: DeepseekMtpConfig) -> None:
    """Drops the main model, and drafts of another depth if there are any."""
    block, layers = config.block, config.block.layers.start - config.depth + 1

    def of_main(variables: Mapping[str, str]) -> bool:
        return int(variables["L"]) < layers

    def of_another(variables: Mapping[str, str]) -> bool:
        number = int(variables["L"])
        return layers <= number < layers + block.draft_layers and number not in block.layers

    why = f"of the model that is drafted for: `{block.family}`"
    draft.drop("layers.{L}.{rest:**}", why=why, when=of_main)
    draft.drop("{n:embed_tokens|norm|lm_head}.weight", why=why)
    why, marker = "of the draft of another `mtp_depth`", "layers.{L}.eh_proj.weight"
    draft.drop("layers.{L}.{rest:**}", why=why, when=of_another, requires=marker)
