"""llama.cpp's names and layouts for Llama, in the words of a transformers checkpoint.

Names: gguf-py `tensor_mapping.py`. Its converter turns the rows of q and k from rope halves into rope pairs
(llama.cpp `convert_hf_to_gguf.py`, `LlamaModel.permute`); the `mv` rules undo that.
"""

from __future__ import annotations

from bringup.adapters.expr import S
from bringup.adapters.rules import Adapter


def dialect() -> Adapter:
    """Targets are the names that the llama adapter asks for."""
    gguf = Adapter("gguf llama", defaults=("out in", "vocab m"))
    gguf["embed_tokens.weight"] = S("token_embd.weight")
    gguf["norm.weight"] = S("output_norm.weight")
    gguf["lm_head.weight"] = S("output.weight")
    gguf["layers.{L}.input_layernorm.weight"] = S("blk.{L}.attn_norm.weight")
    gguf["layers.{L}.post_attention_layernorm.weight"] = S("blk.{L}.ffn_norm.weight")
    gguf["layers.{L}.self_attn.q_proj.weight"] = S("blk.{L}.attn_q.weight").mv(
        "(h pair two) m -> (h d:(two pair)) m", two=2
    )
    gguf["layers.{L}.self_attn.k_proj.weight"] = S("blk.{L}.attn_k.weight").mv(
        "(g pair two) m -> (g d:(two pair)) m", two=2
    )
    gguf["layers.{L}.self_attn.q_proj.bias"] = S("blk.{L}.attn_q.bias").mv("(h pair two) -> (h d:(two pair))", two=2)
    gguf["layers.{L}.self_attn.k_proj.bias"] = S("blk.{L}.attn_k.bias").mv("(g pair two) -> (g d:(two pair))", two=2)
    gguf["layers.{L}.self_attn.v_proj.{p:weight|bias}"] = S("blk.{L}.attn_v.{p}")
    gguf["layers.{L}.self_attn.o_proj.{p:weight|bias}"] = S("blk.{L}.attn_output.{p}")
    gguf["layers.{L}.mlp.{x:gate|up|down}_proj.weight"] = S("blk.{L}.ffn_{x}.weight")
    gguf.drop("rope_freqs.weight", why="factors of llama3 rope: checked when the config is read from the metadata")
    return gguf
