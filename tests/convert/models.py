"""Tiny checkpoints in published layouts, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import Job, open_job
from tests.convert.by_hand import Arrays


def random(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    """float32, every element another."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def llama(
    *, m: int = 16, heads: int = 4, kv: int = 2, dim: int = 4, ffn: int = 24, vocab: int = 32, layers: int = 2,
    bias: bool = True, **words: Any,
) -> tuple[Arrays, dict[str, Any]]:  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, m), "model.norm.weight": (m,)}
    shapes |= {"lm_head.weight": (vocab, m)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        shapes |= {p + "input_layernorm.weight": (m,), p + "post_attention_layernorm.weight": (m,)}
        linear = {"self_attn.q_proj": (heads * dim, m), "self_attn.o_proj": (m, heads * dim)}
        linear |= {"self_attn.k_proj": (kv * dim, m), "self_attn.v_proj": (kv * dim, m)}
        linear |= {"mlp.gate_proj": (ffn, m), "mlp.up_proj": (ffn, m), "mlp.down_proj": (m, ffn)}
        for name, shape in linear.items():
            shapes[f"{p}{name}.weight"] = shape
            if bias:
                shapes[f"{p}{name}.bias"] = shape[:1]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": m, "head_dim": dim,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab,
        "num_hidden_layers": layers, "attention_bias": bias, "mlp_bias": bias,
    }  # fmt: skip
    return random(shapes), config | words


def gpt2(*, m: int = 16, heads: int = 4, vocab: int = 33, layers: int = 2) -> tuple[Arrays, dict[str, Any]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocab, m), "wpe.weight": (8, m)}
    shapes |= {"ln_f.weight": (m,), "ln_f.bias": (m,)}
    for layer in range(layers):
        p = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{p}{norm}.weight": (m,), f"{p}{norm}.bias": (m,)}
        linear = {"attn.c_attn": (m, 3 * m), "attn.c_proj": (m, m), "mlp.c_fc": (m, 4 * m), "mlp.c_proj": (4 * m, m)}
        for name, shape in linear.items():
            shapes |= {f"{p}{name}.weight": shape, f"{p}{name}.bias": shape[1:]}
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": m, "n_head": heads, "n_layer": layers,
        "vocab_size": vocab, "n_positions": 8,
    }  # fmt: skip
    return random(shapes), config


def mixtral(
    *, m: int = 16, heads: int = 4, kv: int = 2, dim: int = 4, ffn: int = 8, vocab: int = 32, experts: int = 4
) -> tuple[Arrays, dict[str, Any]]:
    tensors, config = llama(m=m, heads=heads, kv=kv, dim=dim, ffn=ffn, vocab=vocab, bias=False)
    tensors = {name: w for name, w in tensors.items() if ".mlp." not in name}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(2):
        p = f"model.layers.{layer}.block_sparse_moe."
        shapes[p + "gate.weight"] = (experts, m)
        for e in range(experts):
            shapes |= {f"{p}experts.{e}.w1.weight": (ffn, m), f"{p}experts.{e}.w3.weight": (ffn, m)}
            shapes[f"{p}experts.{e}.w2.weight"] = (m, ffn)
    del config["attention_bias"], config["mlp_bias"]
    words = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": experts}
    return tensors | random(shapes, 1), config | words


def qwen_moe(
    shared: int, *, m: int = 16, heads: int = 4, kv: int = 2, ffn: int = 8, vocab: int = 33, experts: int = 4
) -> tuple[Arrays, dict[str, Any]]:
    """The experts of Qwen2-MoE and Qwen3-MoE; `shared` is the width of the shared expert, 0 for none."""
    tensors, config = (qwen2 if shared else qwen3)(m=m, heads=heads, kv=kv, vocab=vocab)
    tensors = {name: w for name, w in tensors.items() if ".mlp." not in name}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(2):
        p = f"model.layers.{layer}.mlp."
        shapes[p + "gate.weight"] = (experts, m)
        widths = {f"experts.{e}": ffn for e in range(experts)} | ({"shared_expert": shared} if shared else {})
        for name, width in widths.items():
            shapes |= {f"{p}{name}.{x}_proj.weight": (width, m) for x in ("gate", "up")}
            shapes[f"{p}{name}.down_proj.weight"] = (m, width)
        if shared:
            shapes[p + "shared_expert_gate.weight"] = (1, m)
    kind, name = ("qwen2_moe", "Qwen2MoeForCausalLM") if shared else ("qwen3_moe", "Qwen3MoeForCausalLM")
    words = {
        "architectures": [name], "model_type": kind, "num_experts": experts, "num_experts_per_tok": 2,
        "moe_intermediate_size": ffn, "norm_topk_prob": not shared,
    }  # fmt: skip
    return tensors | random(shapes, 1), config | words | ({"shared_expert_intermediate_size": shared} if shared else {})


def qwen2_moe() -> tuple[Arrays, dict[str, Any]]:
    return qwen_moe(12)


def qwen3_moe() -> tuple[Arrays, dict[str, Any]]:
    return qwen_moe(0)


def bloom(*, m: int = 16, heads: int = 4, vocab: int = 33, layers: int = 2) -> tuple[Arrays, dict[str, Any]]:
    shapes: dict[str, tuple[int, ...]] = {"word_embeddings.weight": (vocab, m)}
    norms = ["word_embeddings_layernorm", "ln_f"]
    for layer in range(layers):
        p = f"h.{layer}."
        norms += [f"{p}input_layernorm", f"{p}post_attention_layernorm"]
        linear = {"self_attention.query_key_value": (3 * m, m), "self_attention.dense": (m, m)}
        linear |= {"mlp.dense_h_to_4h": (4 * m, m), "mlp.dense_4h_to_h": (m, 4 * m)}
        for name, shape in linear.items():
            shapes |= {f"{p}{name}.weight": shape, f"{p}{name}.bias": shape[:1]}
    shapes |= {f"{name}.{w}": (m,) for name in norms for w in ("weight", "bias")}
    config = {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": m, "n_head": heads,
        "n_layer": layers, "vocab_size": vocab,
    }  # fmt: skip
    return random(shapes), config


def qwen3(*, m: int = 16, heads: int = 4, kv: int = 2, dim: int = 8, vocab: int = 33) -> tuple[Arrays, dict[str, Any]]:
    tensors, config = llama(m=m, heads=heads, kv=kv, dim=dim, vocab=vocab, bias=False)
    norms = {f"model.layers.{layer}.self_attn.{x}_norm.weight": (dim,) for layer in range(2) for x in "qk"}
    del config["attention_bias"], config["mlp_bias"]
    words = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": False}
    return tensors | random(norms, 1), config | words


def qwen2(*, m: int = 16, heads: int = 4, kv: int = 2, vocab: int = 33) -> tuple[Arrays, dict[str, Any]]:
    """Biases on q, k and v only."""
    tensors, config = llama(m=m, heads=heads, kv=kv, dim=m // heads, vocab=vocab)
    without = ("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")
    tensors = {name: w for name, w in tensors.items() if not name.endswith(without)}
    del config["attention_bias"], config["mlp_bias"], config["head_dim"]
    words = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
    return tensors, config | words


def exaone(*, m: int = 16, heads: int = 4, kv: int = 2, vocab: int = 33) -> tuple[Arrays, dict[str, Any]]:
    """Llama's tensors under EXAONE's names."""
    tensors, config = llama(m=m, heads=heads, kv=kv, dim=m // heads, vocab=vocab, bias=False)
    words = {
        "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
        "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj",
    }  # fmt: skip
    for old, new in words.items():
        tensors = {name.replace(old, new): w for name, w in tensors.items()}
    config = {
        "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "hidden_size": m, "num_layers": 2,
        "intermediate_size": 24, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
        "activation_function": "silu", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return tensors, config


def qwen(*, m: int = 16, heads: int = 4, ffn: int = 24, vocab: int = 33) -> tuple[Arrays, dict[str, Any]]:
    """modeling_qwen.py of Qwen/Qwen-7B: `w2` is the gate, `w1` up, and `intermediate_size` counts both."""
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (vocab, m), "transformer.ln_f.weight": (m,)}
    shapes |= {"lm_head.weight": (vocab, m)}
    for layer in range(2):
        p = f"transformer.h.{layer}."
        shapes |= {p + "ln_1.weight": (m,), p + "ln_2.weight": (m,)}
        shapes |= {p + "attn.c_attn.weight": (3 * m, m), p + "attn.c_attn.bias": (3 * m,)}
        shapes |= {p + "attn.c_proj.weight": (m, m), p + "mlp.c_proj.weight": (m, ffn)}
        shapes |= {p + "mlp.w1.weight": (ffn, m), p + "mlp.w2.weight": (ffn, m)}
    config = {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": m, "num_hidden_layers": 2,
        "num_attention_heads": heads, "kv_channels": m // heads, "intermediate_size": 2 * ffn, "vocab_size": vocab,
        "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "seq_length": 64, "max_position_embeddings": 128,
        "no_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    return random(shapes), config


def phi3(*, m: int = 16, heads: int = 4, kv: int = 2, vocab: int = 33) -> tuple[Arrays, dict[str, Any]]:
    """Llama's tensors, with q, k and v one after the other in one matrix, gate and up in another."""
    tensors, config = llama(m=m, heads=heads, kv=kv, dim=m // heads, vocab=vocab, bias=False)
    for layer in range(2):
        p = f"model.layers.{layer}."
        qkv = [tensors.pop(f"{p}self_attn.{x}_proj.weight") for x in "qkv"]
        gate_up = [tensors.pop(f"{p}mlp.{x}_proj.weight") for x in ("gate", "up")]
        tensors[f"{p}self_attn.qkv_proj.weight"] = np.concatenate(qkv)
        tensors[f"{p}mlp.gate_up_proj.weight"] = np.concatenate(gate_up)
    del config["attention_bias"], config["mlp_bias"], config["head_dim"]
    words = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "tie_word_embeddings": False}
    return tensors, config | words


def job(tensors: Arrays, config: dict[str, Any]) -> Job:
    return open_job(checkpoint=dict_checkpoint(tensors, config))
