"""Adapters that peft writes, merged into our graphs' parameters, against peft's own logits."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.job import open_job, with_weights
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from tests.lora.written import TOKENS, Case, write
from tests.models import family

WORST = 1e-5  # largest |difference| over largest |logit|, float32: W + scale · B · A is summed in another order
MOVED = 1e-3  # what an adapter has to change to be tested at all
CASES: dict[str, Case] = {
    "llama-all-linear": Case("llama", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
    "llama-rank-1": Case("llama", {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}),
    "llama-one-layer": Case(
        "llama", {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}
    ),
    "llama-embedding-and-head": Case("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head"]}),
    "llama-embedding-tied": Case("llama", {"r": 4, "target_modules": ["embed_tokens"]}, {"tie_word_embeddings": True}),
    "llama-embedding-tied-to-the-head": Case(
        "llama", {"r": 4, "target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
        {"tie_word_embeddings": True},
    ),
    "qwen3-mixed-ranks-rslora": Case(
        "qwen3",
        {
            "r": 64, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "k_proj", "o_proj", "down_proj"],
            "rank_pattern": {"k_proj": 1, r"layers\.1\.mlp\.down_proj": 5},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 3},
        },
    ),
    "mixtral-regex-and-excluded": Case(
        "mixtral", {"target_modules": r"model\.layers\.0\..*_proj", "exclude_modules": ["k_proj"]}
    ),
    "mixtral-experts": Case(
        "mixtral",
        {
            "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"],
            "rank_pattern": {"mlp.experts.down_proj": 3},
        },
    ),
    "qwen2_moe-shared-expert": Case(
        "qwen2_moe", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "shared_expert_gate", "up_proj"]}
    ),
    "mixtral-experts-by-published-names": Case("mixtral", {"r": 4, "target_modules": ["w1", "w2", "w3"]}),
    "gpt2-conv1d": Case(
        "gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True}
    ),
    "deepseek_v3-latent": Case(
        "deepseek_v3",
        {"r": 8, "target_modules": ["q_a_proj", "q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa", "o_proj"]},
    ),
    "deepseek_v3-experts": Case(
        "deepseek_v3", {"r": 4, "target_modules": ["kv_b_proj", "gate_proj", "up_proj", "down_proj"]}
    ),
    "qwen3_next-fused-by-key-head": Case(
        "qwen3_next",
        {"r": 4, "lora_alpha": 8, "target_modules": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "o_proj"]},
    ),
    "qwen3_5-all-linear": Case("qwen3_5", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
    "mimo_v2_flash-narrow-values": Case(
        "mimo_v2_flash",
        {
            "r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "o_proj", "up_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.gate.weight"],
        },
    ),
    "minimax_m2-experts": Case(
        "minimax_m2",
        {
            "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"],
        },
    ),
    "phi3-fused": Case("phi3", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
    "lfm2-projections-of-a-convolution": Case(
        "lfm2", {"r": 4, "target_modules": ["in_proj", "out_proj", "w1", "w2", "w3", "q_proj"]}
    ),
    "granitemoehybrid-fused-in-a-mamba-layer": Case(
        "granitemoehybrid",
        {"r": 4, "target_modules": ["in_proj", "out_proj", "input_linear", "output_linear", "k_proj"]},
    ),
    "nemotron_h-experts-without-gates": Case(
        "nemotron_h",
        {
            "r": 4, "target_modules": ["in_proj", "up_proj", "v_proj"],
            "target_parameters": ["mixer.experts.up_proj", "mixer.experts.down_proj"],
        },
    ),
    "gemma4-layers-that-share-keys": Case(
        "gemma4", {"r": 4, "lora_alpha": 1, "target_modules": "all-linear"},
        {
            "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "gemma4-inputs-of-layers": Case(
        "gemma4",
        {"r": 4, "target_modules": ["embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection"]},
    ),
    "gemma4-experts": Case(
        "gemma4",
        {
            "r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
        {
            "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gpt_neox-fused-by-head": Case("gpt_neox", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_merged_logits_are_those_of_peft(name, tmp_path):
    written = write(CASES[name], tmp_path)
    job = open_job(checkpoint=str(written.base))
    loaded = load_lora(job, written.lora)
    assert loaded.findings == []
    ours = family.eager_logits(with_weights(job, merged(job, loaded)), TOKENS, len(TOKENS))
    largest = np.abs(written.logits).max()
    assert np.abs(ours - written.logits).max() <= WORST * largest
    assert np.abs(written.plain - written.logits).max() > MOVED * largest


@pytest.mark.parametrize("rank", [2, 16, 64])
def test_ranks(rank, tmp_path):
    words = {"r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "up_proj"], "use_rslora": rank == 16}
    written = write(Case("llama", words), tmp_path, deviation=0.1)
    job = open_job(checkpoint=str(written.base))
    ours = family.eager_logits(with_weights(job, merged(job, load_lora(job, written.lora))), TOKENS, len(TOKENS))
    assert np.abs(ours - written.logits).max() <= WORST * np.abs(written.logits).max()
