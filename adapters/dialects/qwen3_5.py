"""Qwen3.5 in GGUF. Hyperparameters and layouts: llama.cpp's converter, `conversion/qwen.py`.

Value heads are not in the order of their key heads: the first of each key head come first, then the second of each, as
ggml repeats a key head (`_LinearAttentionVReorderBase`). The layer of the draft model follows the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects import hybrid
from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.dialects.routing import drop_draft
from bringup.adapters.dialects.tables import add_mlp
from bringup.adapters.hybrid import MIXER, by_key_head, by_value_head, channels
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.hybrid import HybridConfig

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.qwen3_5 import Qwen3_5Config

# Sections of positions do not affect text; see `read_text` of graphs/qwen3_5.py.
KEYS: Mapping[str, str | None] = {**hybrid.KEYS, "nextn_predict_layers": None, "rope.dimension_sections": None}


def table(config: Qwen3_5Config) -> Adapter:
    gguf = text_model(config)
    add_mlp(gguf)
    return gguf


def text_model(config: HybridConfig) -> Adapter:
    """The rules without those for MLPs and experts."""
    gguf = hybrid.hybrid(config, tiled=True)
    qkv = S("blk.{L}.attn_qkv.weight", "x m", x=channels(config))
    gguf[f"{MIXER}in_proj_qkv.weight"] = by_key_head(qkv, "m", config, tiled=True)
    for x, stored, axes in (("z", "attn_gate", "({} v) m"), ("b", "ssm_beta", "({}) m"), ("a", "ssm_alpha", "({}) m")):
        rows = S(f"blk.{{L}}.{stored}.weight", axes.format("r h"))
        gguf[f"{MIXER}in_proj_{x}.weight"] = by_value_head(rows, axes, config)
    drop_draft(gguf, len(config.recurrent))
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    """The keys of `hybrid.derived`, and the number of layers without the draft's."""
    layers, drafts = hyper.values["block_count"], hyper.values.get("nextn_predict_layers") or 0
    if type(drafts) is int:
        layers -= drafts
    return {**hybrid.derived(hyper), "num_hidden_layers": layers, "mtp_num_hidden_layers": drafts}


dialect = Dialect(
    names=("qwen35",),
    architecture="Qwen3_5ForCausalLM",
    keys=KEYS,
    fixed={"model_type": "qwen3_5_text", "hidden_act": "silu"},
    derived=derived,
    table=table,
)
