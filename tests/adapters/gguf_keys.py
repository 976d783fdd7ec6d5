"""The metadata keys that llama.cpp's converter writes for a family, and the divisors of RoPE's frequencies.

A docstring names the method of `convert_hf_to_gguf.py` that a function reproduces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import gguf
import numpy as np

from tests.adapters.llama_cpp import Config


def gpt2(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def bloom(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config.get("seq_length", config["hidden_size"]))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(4 * config["hidden_size"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_head_count_kv(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def gpt_neox(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    part, width = config["rope_parameters"]["partial_rotary_factor"], config["hidden_size"]
    writer.add_rope_dimension_count(int(part * (width // config["num_attention_heads"])))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])


def glm(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Glm4MoeModel.set_gguf_parameters`."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(width * config["rope_parameters"]["partial_rotary_factor"]))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_nextn_predict_layers(0)
    of_experts(writer, config)


def lfm2(writer: gguf.GGUFWriter, config: Config) -> None:
    """`LFM2Model.set_gguf_parameters`, and what `TextModel.set_gguf_parameters` writes for it."""
    _of_lfm2(writer, config)
    width, multiple = config["intermediate_size"], config["block_multiple_of"]
    if config["block_auto_adjust_ff_dim"]:
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = multiple * ((width + multiple - 1) // multiple)
    writer.add_feed_forward_length(width)


def lfm2_moe(writer: gguf.GGUFWriter, config: Config) -> None:
    """`LFM2MoeModel.set_gguf_parameters`, and what `TextModel.set_gguf_parameters` writes for it."""
    _of_lfm2(writer, config)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_leading_dense_block_count(config["num_dense_layers"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _of_lfm2(writer: gguf.GGUFWriter, config: Config) -> None:
    heads = config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in config["layer_types"]])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])


def of_experts(writer: gguf.GGUFWriter, config: Config) -> None:
    """What the converters of GLM-4.5 and DeepSeek write alike."""
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)


def deepseek(writer: gguf.GGUFWriter, config: Config) -> None:
    """`DeepseekV2Model.set_gguf_parameters`: a latent row is the one key head."""
    of_experts(writer, config)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    rank, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(rank)
    set_key(writer, "attention.head_count_kv", 1)
    set_key(writer, "attention.key_length", rank + rotary)
    set_key(writer, "attention.value_length", rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotary)
    writer.add_value_length_mla(config["v_head_dim"])
    of_rope(writer, config)


def deepseek_of_2024(writer: gguf.GGUFWriter, config: Config) -> None:
    """As of llama.cpp before pull request 12801: `kv_b` is whole, and a head's lengths are its own."""
    of_experts(writer, config)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    set_key(writer, "attention.key_length", config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    set_key(writer, "attention.value_length", config["v_head_dim"])
    of_rope(writer, config)


def of_rope(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    if all_dim := config["rope_parameters"].get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * all_dim)


def ministral3(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Mistral3Model.Ministral3Model.set_gguf_parameters`."""
    mistral_small(writer, config)
    writer.add_rope_scaling_yarn_log_mul(config["rope_parameters"]["mscale_all_dim"])
    writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])


def mistral_small(writer: gguf.GGUFWriter, config: Config) -> None:
    """`LlamaModel.set_gguf_parameters`."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])


def v3(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)  # `scoring_func` of the published config
    deepseek(writer, config)


def v32(writer: gguf.GGUFWriter, config: Config) -> None:
    """`DeepseekV32Model.set_gguf_parameters`."""
    v3(writer, config)
    writer.add_nextn_predict_layers(0)
    writer.add_indexer_head_count(config["index_n_heads"])
    writer.add_indexer_key_length(config["index_head_dim"])
    writer.add_indexer_top_k(config["index_topk"])


def glm_dsa(writer: gguf.GGUFWriter, config: Config) -> None:
    """`GlmMoeDsaModel.set_gguf_parameters`; gguf 0.19 has no method for the last key."""
    v32(writer, config)
    writer.add_array(f"{writer.arch}.attention.indexer.types", [kind == "full" for kind in config["indexer_types"]])


def glm_dsa_of_2026(writer: gguf.GGUFWriter, config: Config) -> None:
    """As of llama.cpp before it read the types of layers: it derives them from the length of the context."""
    v32(writer, config)


def set_key(writer: gguf.GGUFWriter, key: str, value: int | list[int]) -> None:
    """A key that `hyperparameters` may have written: llama.cpp's converter changes the config before."""
    name = f"{writer.arch}.{key}"
    writer.kv_data[0].pop(name, None)
    if isinstance(value, list):
        writer.add_array(name, value)
    else:
        writer.add_uint32(name, value)


def glm_lite(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Glm4MoeLiteModel.set_gguf_parameters`; the published config.json has the number of dense layers."""
    v3(writer, {**config, "first_k_dense_replace": config["mlp_layer_types"].index("sparse")})


def gpt_oss(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def mimo(writer: gguf.GGUFWriter, config: Config) -> None:
    """`MimoV2Model.set_gguf_parameters`; the window is the one that transformers computes with."""
    heads, ropes = config["num_key_value_heads"], config["rope_parameters"]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    set_key(writer, "attention.head_count_kv", [heads * (1 + window) for window in windows])
    set_key(writer, "attention.value_length", config["v_head_dim"])
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    partial = ropes["full_attention"].get("partial_rotary_factor", 0.334)
    writer.add_rope_dimension_count(int(config["head_dim"] * partial))
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_nextn_predict_layers(0)
    if config["attention_value_scale"] is not None:  # gguf 0.19 has no method for this key
        writer.add_float32(f"{writer.arch}.attention.value_scale", config["attention_value_scale"])


def minimax(writer: gguf.GGUFWriter, config: Config) -> None:
    """`MiniMaxM2Model.set_gguf_parameters`; the scoring function is that of the published config."""
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))


def qwen(writer: gguf.GGUFWriter, config: Config) -> None:
    """`QwenModel.set_gguf_parameters`, in the published config's sizes."""
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(2 * config["intermediate_size"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(width)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def exaone(writer: gguf.GGUFWriter, config: Config) -> None:
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(width)
    rope = config["rope_parameters"]
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(list(llama3_factors(rope, width)), np.float32))


def llama4(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Llama4Model.set_gguf_parameters`, after those of its bases."""
    exaone(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    set_key(writer, "rope.dimension_count", config["head_dim"])
    set_key(writer, "feed_forward_length", config["intermediate_size_mlp"])
    writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def llama3_factors(rope: Config, width: int) -> Iterator[float]:
    """`generate_extra_tensors`: what llama3 rope divides each frequency by."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    for index in range(0, width, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / width)
        turns = rope["original_max_position_embeddings"] / wavelength
        share = min(max((turns - low) / (high - low), 0.0), 1.0) if low < high else float(turns > low)
        yield 1 / ((1 - share) / factor + share)


def qwen3_next(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Qwen2MoeModel.set_gguf_parameters`, and that of `Qwen3NextModel`."""
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    part = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(config["head_dim"] * part))


def granite_moe(writer: gguf.GGUFWriter, config: Config) -> None:
    """`GraniteMoeModel.set_gguf_parameters`."""
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def granite_hybrid(writer: gguf.GGUFWriter, config: Config) -> None:
    """`GraniteHybridModel.set_gguf_parameters`."""
    granite_moe(writer, config)
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    heads = config["num_key_value_heads"]
    set_key(writer, "attention.head_count_kv", [heads * (kind == "full_attention") for kind in config["layer_types"]])
    with_rope = "linear_attention" not in config["layer_types"]
    writer.add_rope_scaling_finetuned(with_rope)
    if not with_rope:
        set_key(writer, "context_length", 2**20)


def bamba(writer: gguf.GGUFWriter, config: Config) -> None:
    granite_hybrid(writer, config)
    writer.kv_data[0].pop(f"{writer.arch}.rope.scaling.finetuned")
    writer.add_rope_scaling_finetuned(True)


def gemma4(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Gemma4Model.set_gguf_parameters`, and what its bases write from keys of Gemma 4 only."""
    local, layers, shared = config["head_dim"], config["num_hidden_layers"], config["num_kv_shared_layers"]
    full = config["per_layer_config"][str(layers - 1)]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    for name, width in (("", full["head_dim"]), ("_swa", local)):
        set_key(writer, f"attention.key_length{name}", width)
        set_key(writer, f"attention.value_length{name}", width)
        set_key(writer, f"rope.dimension_count{name}", width)
    if config["moe_intermediate_size"]:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_used_count(config["top_k_experts"])
    if config["use_double_wide_mlp"]:
        width = config["intermediate_size"]
        set_key(writer, "feed_forward_length", [width] * (layers - shared) + [2 * width] * shared)
    if other := full.get("num_key_value_heads"):
        heads = config["num_key_value_heads"]
        set_key(writer, "attention.head_count_kv", [heads if window else other for window in windows])


def qwen3_5(writer: gguf.GGUFWriter, config: Config) -> None:
    """`_Qwen35MRopeMixin.set_gguf_parameters`, after those above."""
    qwen3_next(writer, config)
    writer.add_rope_dimension_sections([*config["rope_parameters"].get("mrope_section", [11, 11, 10]), 0])


def nemotron_h(writer: gguf.GGUFWriter, config: Config) -> None:
    """`NemotronHModel.set_gguf_parameters`, after those of its bases."""
    kinds = config["layers_block_type"]
    writer.add_block_count(len(kinds))
    writer.add_context_length(2**20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(10000)
    writer.add_rope_scaling_finetuned(False)
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    if "moe" not in kinds:
        writer.add_feed_forward_length([config["intermediate_size"] * (kind == "mlp") for kind in kinds])
        return
    writer.add_feed_forward_length([config["moe_intermediate_size"] * (kind == "moe") for kind in kinds])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    if config["moe_latent_size"]:
        writer.add_moe_latent_size(config["moe_latent_size"])


def falcon_h1(writer: gguf.GGUFWriter, config: Config) -> None:
    """`FalconH1Model.set_gguf_parameters`, and what `Mamba2Model.set_gguf_parameters` writes in addition."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_inner_size(config["mamba_d_ssm"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
