"""A Llama in another published layout: q, k and v of each head are in one tensor, and every name is different.

    bringup check examples/add_a_model/tiny.py --checkpoint DIR

The graph is bringup's; only the table is new.
"""

from bringup.adapters import Adapter, Expr, S
from bringup.graphs import Family
from bringup.graphs.llama import Llama, LlamaConfig


def part(index: int, heads: str) -> Expr:
    """q, k or v of every head; a head's rows are its q, its k, its v."""
    return S("blocks.{L}.qkv.weight").mv(f"({heads} t d) m -> t ({heads} d) m", t=3).at("t", index)


def adapter(config: LlamaConfig) -> Adapter:
    tiny = Adapter("tiny", defaults=("out in", "vocab m"))
    for index, (x, heads) in enumerate({"q": "h", "k": "g", "v": "g"}.items()):
        tiny[f"model.layers.{{L}}.self_attn.{x}_proj.weight"] = part(index, heads)
    tiny["model.layers.{L}.self_attn.o_proj.weight"] = S("blocks.{L}.out.weight")
    tiny["model.layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blocks.{L}.{x}.weight")
    tiny["model.layers.{L}.input_layernorm.weight"] = S("blocks.{L}.norm1.weight")
    tiny["model.layers.{L}.post_attention_layernorm.weight"] = S("blocks.{L}.norm2.weight")
    tiny["model.embed_tokens.weight"] = S("embed.weight")
    tiny["model.norm.weight"] = S("norm.weight")
    tiny["lm_head.weight"] = S("head.weight")
    return tiny


family = Family(name="tiny", graph=Llama, config=LlamaConfig, adapter=adapter, architectures=("TinyForCausalLM",))
