"""Level 3: another layout. Qwen 1's published files, as differences from Llama's.

bringup check qwen --checkpoint DIR --adapter examples/authoring/qwen1_layout.py
"""

from bringup.adapters import Adapter, S
from bringup.adapters.llama import adapter as llama
from bringup.graphs.qwen import QWenConfig

NAMES = {
    "model": "transformer",
    "layers": "h",
    "embed_tokens": "wte",
    "norm": "ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
}


def adapter(config: QWenConfig) -> Adapter:
    rules = {}
    for index, (x, h) in enumerate({"q": "h", "k": "g", "v": "g"}.items()):
        weight = S("h.{L}.attn.c_attn.weight", f"(t {h} d) m", t=3).mv(f"(t {h} d) m -> t ({h} d) m", t=3)
        bias = S("h.{L}.attn.c_attn.bias", f"(t {h} d)", t=3).mv(f"(t {h} d) -> t ({h} d)", t=3)
        rules[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = weight.at("t", index)
        rules[f"model.layers.{{L}}.self_attn.{x}_proj.bias"] = bias.at("t", index)
    return llama(config).with_("qwen", names=NAMES, rules=rules)  # type: ignore[arg-type]  of Llama's config it reads one word
