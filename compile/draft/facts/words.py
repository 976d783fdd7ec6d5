"""The names of tensors and sizes in published checkpoints, by which a draft recognises them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Keys of config.json for the sizes that every decoder has, by the key that `read_common` reads.
SIZES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
MULTI_QUERY = ("multi_query",)  # true: one key head, whatever another key states
PARALLEL = ("parallel_attn", "use_parallel_residual", "parallel_residual")  # true: the MLP reads what attention reads
THETA = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
HEAD_DIM = ("head_dim", "head_size", "kv_channels", "d_head")
QK_NORMS = ("use_qk_norm", "qk_layernorm", "use_qk_layernorm", "qk_norm")  # true: queries and keys have norms
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "layernorm_epsilon")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "activation")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")  # each as wide as a routed expert
QKV_BIAS = ("attention_bias", "use_qkv_bias", "qkv_bias", "attn_bias", "use_bias", "bias")
OUT_BIAS = ("attention_out_bias", "attention_o_bias", "attention_bias", "use_bias", "bias")
MLP_BIAS = ("mlp_bias", "use_mlp_bias", "use_bias", "bias")

# The matrices and norms of multi-head latent attention, by their names in transformers.
LATENT = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")

# The last words of a tensor's name before `weight` or `bias`, by its role. In attention, in the MLP, or anywhere else.
ATTENTION: Mapping[str, tuple[str, ...]] = {
    "q": ("q_proj", "wq", "query", "q_lin", "q", "attn_q"),
    "k": ("k_proj", "wk", "key", "k_lin", "k", "attn_k"),
    "v": ("v_proj", "wv", "value", "v_lin", "v", "attn_v"),
    "o": ("o_proj", "out_proj", "wo", "c_proj", "dense", "out", "o", "out_lin", "attn_out"),
    "qkv": ("qkv_proj", "qkv", "c_attn", "query_key_value", "wqkv", "W_pack", "att_proj", "in_proj", "Wqkv"),
    "q_norm": ("q_norm", "q_layernorm", "query_norm", "query_layernorm", "norm_q"),
    "k_norm": ("k_norm", "k_layernorm", "key_norm", "key_layernorm", "norm_k"),
    "o_norm": ("attn_sub_norm",),
    **{role: (role,) for role in LATENT},
    "sinks": ("sinks",),
    "o_gate": ("gate_proj", "g_proj"),
}
MLP: Mapping[str, tuple[str, ...]] = {
    "gate": ("gate_proj", "w1", "c_fc_0", "linear_gate"),
    "up": ("up_proj", "w3", "c_fc_1", "c_fc", "fc1", "fc_in", "dense_h_to_4h", "linear_1"),
    "down": ("down_proj", "w2", "c_proj", "fc2", "fc_out", "dense_4h_to_h", "linear_2", "linear_out", "output_linear"),
    "gate_up": ("gate_up_proj", "gate_and_up_proj", "wi", "linear_in", "input_linear"),
    "router": ("gate", "router", "wg", "router_proj"),
    "mlp_norm": ("ffn_sub_norm",),
}
SHARED: Mapping[str, tuple[str, ...]] = {  # of an expert that computes every token
    **{f"shared_{role}": MLP[role] for role in ("gate", "up", "down", "gate_up")},
    "shared_router": ("shared_expert_gate",),
}
NORMS: Mapping[str, tuple[str, ...]] = {
    "norm_1": (
        "input_layernorm", "ln_1", "attention_norm", "norm1", "norm_1", "attn_norm", "pre_attention_layernorm",
        "self_attn_layer_norm", "ln_attn",
    ),
    "norm_2": (
        "post_attention_layernorm", "ln_2", "ffn_norm", "norm2", "norm_2", "post_attention_norm", "final_layer_norm",
        "ln_mlp",
    ),
    "norm_3": ("pre_feedforward_layernorm", "pre_mlp_layernorm", "pre_feedforward_norm"),
    "norm_4": ("post_feedforward_layernorm", "post_mlp_layernorm", "post_feedforward_norm"),
}  # fmt: skip
TOP: Mapping[str, tuple[str, ...]] = {
    "embed": (
        "embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "embedding", "embed", "embeddings",
    ),
    "embed_norm": ("word_embeddings_layernorm", "embed_norm", "embedding_norm"),
    "norm": ("norm", "ln_f", "final_layernorm", "final_layer_norm", "norm_f", "final_norm"),
    "head": ("lm_head", "embed_out", "output", "head", "output_layer"),
    "positions": ("embed_positions", "wpe", "position_embeddings", "embed_position"),  # learned
}  # fmt: skip
IN_ATTENTION = ("attn", "attention", "att")
IN_SHARED = ("shared_expert", "shared_mlp")
IN_MLP = ("mlp", "ffn", "feed_forward", "moe", "experts", "block_sparse_moe", "feedforward")
# The last words of vectors that some norms have instead of `weight` and `bias`.
OF_NORMS: Mapping[str, str] = {"scale": "weight", "gamma": "weight", "beta": "bias"}
# Parts of a name that state the class of a matrix and not its role: `c_up`, `up_linear`.
OF_CLASSES = re.compile(r"^(c|linear|lin|fc|dense)_|_(linear|lin|fc|dense|layer)$")
# A tensor of several matrices, and the roles of these: a layer has either.
MERGED: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
# Buffers that are not weights: tables that every program computes itself.
BUFFERS: Mapping[str, str] = {
    "inv_freq": "rope frequencies: computed from the config",
    "masked_bias": "a constant of the causal mask",
    "causal_mask": "the causal mask",
}

# Parameters of the drafted graph, by role. `{p}` is weight or bias.
PARAMETERS: Mapping[str, str] = {
    "embed": "model.embed_tokens.{p}",
    "norm": "model.norm.{p}",
    "positions": "model.positions.{p}",
    "embed_norm": "model.embed_norm.{p}",
    "head": "lm_head.{p}",
    "norm_1": "model.layers.{L}.input_layernorm.{p}",
    "norm_2": "model.layers.{L}.post_attention_layernorm.{p}",
    "norm_3": "model.layers.{L}.pre_feedforward_layernorm.{p}",
    "norm_4": "model.layers.{L}.post_feedforward_layernorm.{p}",
    **{role: f"model.layers.{{L}}.self_attn.{role}_proj.{{p}}" for role in "qkvo"},
    **{role: f"model.layers.{{L}}.self_attn.{role}.{{p}}" for role in ("q_norm", "k_norm", "o_norm")},
    **{role: f"model.layers.{{L}}.self_attn.{role}.{{p}}" for role in LATENT},
    "sinks": "model.layers.{L}.self_attn.sinks",
    "o_gate": "model.layers.{L}.self_attn.gate_proj.{p}",
    "mlp_norm": "model.layers.{L}.mlp.norm.{p}",
    **{role: f"model.layers.{{L}}.mlp.{role}_proj.{{p}}" for role in ("gate", "up", "down")},
    "router": "model.layers.{L}.mlp.gate.{p}",
    "router_bias": "model.layers.{L}.mlp.gate.e_score_correction_bias",
    **{f"shared_{role}": f"model.layers.{{L}}.mlp.shared.{role}_proj.{{p}}" for role in ("gate", "up", "down")},
    "shared_router": "model.layers.{L}.mlp.shared_gate.{p}",
}
# The same for an MLP without a gate (`bringup.graphs.MLP`), and for experts.
PLAIN_MLP = {"up": "model.layers.{L}.mlp.dense_h_to_4h.{p}", "down": "model.layers.{L}.mlp.dense_4h_to_h.{p}"}
EXPERT_MLP = {role: f"model.layers.{{L}}.mlp.experts.{role}_proj" for role in ("gate", "up", "down")}


def first(keys: tuple[str, ...], words: Mapping[str, object]) -> str | None:
    """The first of the keys that has a value in a config."""
    return next((key for key in keys if words.get(key) is not None), None)
