"""Granite 4 shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

from typing import Any

from transformers import GraniteMoeHybridConfig, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=3, hidden_size=30, intermediate_size=22, num_attention_heads=5,
        num_key_value_heads=1, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=6, mamba_d_state=12,
        num_local_experts=67, num_experts_per_tok=3, shared_intermediate_size=20, embedding_multiplier=12.0,
        logits_scaling=3.0, residual_multiplier=0.22, attention_multiplier=0.25, position_embedding_type="nope",
        tie_word_embeddings=True,
    ),
    "dense-groups-biases": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, layer_types=["attention", "mamba"], mamba_n_heads=8, mamba_d_head=9, mamba_d_state=10,
        mamba_n_groups=2, mamba_d_conv=3, num_local_experts=0, shared_intermediate_size=44, mamba_proj_bias=True,
        attention_bias=True, position_embedding_type="rope", logits_scaling=0.5, hidden_act="gelu",
    ),
    "attention-only-linear-rope": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=40, intermediate_size=26, num_attention_heads=5,
        num_key_value_heads=5, layer_types=["attention"] * 2, mamba_n_heads=8, num_local_experts=4,
        num_experts_per_tok=4, shared_intermediate_size=18, position_embedding_type="rope", attention_multiplier=0.125,
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    ),
    "a-group-each-head": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=32, intermediate_size=18, num_attention_heads=4, mamba_n_heads=4,
        layer_types=["linear_attention", "full_attention"],
        mamba_d_state=16, mamba_n_groups=4, mamba_conv_bias=False, mamba_expand=1, num_local_experts=5,
        num_experts_per_tok=2, shared_intermediate_size=24, residual_multiplier=0.5,
    ),
}  # fmt: skip
