"""Mixtral shapes: cases of test_families.py."""

from __future__ import annotations

from typing import Any

from transformers import MixtralConfig, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": MixtralConfig(
        **SIZES, hidden_size=30, intermediate_size=22, num_attention_heads=3, num_key_value_heads=1,
        num_local_experts=67, num_experts_per_tok=1,
    ),
    "window-tied": MixtralConfig(
        **SIZES, hidden_size=42, intermediate_size=26, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
        num_local_experts=5, num_experts_per_tok=3, sliding_window=9, tie_word_embeddings=True,
    ),
    "every-expert": MixtralConfig(
        **SIZES, hidden_size=36, intermediate_size=34, num_attention_heads=3, num_key_value_heads=3,
        num_local_experts=4, num_experts_per_tok=4, rope_parameters=LINEAR,
    ),
}  # fmt: skip
