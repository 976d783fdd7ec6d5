"""LFM2 in GGUF: a layer with no key heads has a convolution.

Names: gguf-py, `tensor_mapping.py`; hyperparameters: `LFM2Model` of llama.cpp's `convert_hf_to_gguf.py`, which writes
the adjusted width of the feed-forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.algebra.expr import S
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.tables import add_attention, add_mlp, add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.config.fields import MOST_LAYERS

if TYPE_CHECKING:
    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.graphs.lfm2 import Lfm2Config

KEY_HEADS = "attention.head_count_kv"
KEYS = {**DECODER, "attention.layer_norm_rms_epsilon": "norm_eps", KEY_HEADS: None, "shortconv.l_cache": "conv_L_cache"}


def table(config: Lfm2Config) -> Adapter:
    gguf = without_layers(config, norm=S("token_embd_norm.weight"))
    layer = "model.layers.{L}."
    add_norms(gguf)
    add_attention(gguf)
    add_mlp(gguf)
    inputs = S("blk.{L}.shortconv.in_proj.weight", "(t f) m", t=3).mv("(t f) m -> t f m")
    for index, x in enumerate("bcx"):
        gguf[f"{layer}mixer.{x}_proj.weight"] = inputs.at("t", index)
    gguf[layer + "mixer.conv.weight"] = S("blk.{L}.shortconv.conv.weight", "f tap")
    gguf[layer + "mixer.out_proj.weight"] = S("blk.{L}.shortconv.out_proj.weight")
    return gguf


def derived(hyper: Hyperparameters) -> dict[str, Any]:
    return by_key_heads(hyper, "conv")


def by_key_heads(hyper: Hyperparameters, recurrent: str) -> dict[str, Any]:
    """The kind of each layer, `recurrent` without key heads, and the key heads of those with attention."""
    own = hyper.values
    stated = own.get(KEY_HEADS, own["attention.head_count"])
    if not isinstance(stated, list):
        kind, layers = "full_attention" if stated else recurrent, own["block_count"]
        types = {"layer_types": [kind] * layers} if layers <= MOST_LAYERS else {}  # more layers are an error
        return types | ({"num_key_value_heads": stated} if stated else {})
    of_layers = cast("list[object]", stated)
    counts = [count for count in of_layers if count] or [own["attention.head_count"]]
    same = all(count == counts[0] for count in counts)
    return {
        "num_key_value_heads": counts[0] if same else of_layers,
        "layer_types": ["full_attention" if count else recurrent for count in of_layers],
    }


dialect = Dialect(
    names=("lfm2",),
    architecture="Lfm2ForCausalLM",
    keys=KEYS,
    fixed={"model_type": "lfm2", "block_auto_adjust_ff_dim": False},
    derived=derived,
    table=table,
)
