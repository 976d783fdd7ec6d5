"""Gemma 4 shapes: cases of test_families.py, both forms of its config.json, and its tensors."""

from __future__ import annotations

from typing import Any

from transformers import Gemma4TextConfig, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "vocab_size_per_layer_input": 131, "max_position_embeddings": 1024}
WINDOW, FULL = "sliding_attention", "full_attention"
CASES: dict[str, PreTrainedConfig] = {
    "values-of-keys": Gemma4TextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=40, intermediate_size=66, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True,
        sliding_window=9, rms_norm_eps=1e-3, layer_types=[WINDOW, FULL, FULL], hidden_size_per_layer_input=0,
        final_logit_softcapping=2.0,
    ),
    "experts-untied": Gemma4TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=40, num_attention_heads=3,
        num_key_value_heads=3, head_dim=8, global_head_dim=16, sliding_window=20, layer_types=[WINDOW, FULL],
        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=14, tie_word_embeddings=False, attention_bias=True,
    ),
    "shared-layers-with-inputs": Gemma4TextConfig(
        **SIZES, num_hidden_layers=6, hidden_size=30, intermediate_size=28, num_attention_heads=2,
        num_key_value_heads=1, head_dim=14, global_head_dim=20, sliding_window=33, num_kv_shared_layers=3,
        layer_types=[WINDOW, FULL, WINDOW, FULL, WINDOW, FULL], use_double_wide_mlp=True,
        hidden_size_per_layer_input=10,
    ),
}  # fmt: skip
