"""Llama 4 shapes: cases of test_families.py, its config.json, its tensors, and chunks shorter than the context."""

from __future__ import annotations

from typing import Any

from transformers import Llama4TextConfig, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
STEPPED = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "short-chunks-dense-layers": Llama4TextConfig(
        **SIZES, num_hidden_layers=4, hidden_size=30, intermediate_size=22, intermediate_size_mlp=34,
        num_attention_heads=5, num_key_value_heads=1, head_dim=12, num_local_experts=6, num_experts_per_tok=2,
        interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=9, floor_scale=10, attn_scale=0.7,
    ),
    "more-experts-than-tokens-tied": Llama4TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=26, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, num_local_experts=67, num_experts_per_tok=1, no_rope_layers=[0, 1],
        use_qk_norm=False, attention_bias=True, rope_parameters=STEPPED, tie_word_embeddings=True, hidden_act="gelu",
    ),
    "without-experts": Llama4TextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=32, intermediate_size_mlp=42, num_attention_heads=4,
        num_key_value_heads=4, head_dim=8, moe_layers=[], no_rope_layers=[1, 0, 1], attention_chunk_size=33,
        layer_types=["full_attention", "chunked_attention", "chunked_attention"], attn_temperature_tuning=False,
    ),
}  # fmt: skip
