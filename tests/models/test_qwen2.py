"""Qwen2 shapes: cases of test_families.py."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, Qwen2Config

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, PreTrainedConfig] = {
    "odd-heads-tied": Qwen2Config(
        **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, num_key_value_heads=1,
        tie_word_embeddings=True,
    ),
    "windows-from-a-layer-on": Qwen2Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, use_sliding_window=True, sliding_window=9, max_window_layers=1,
    ),
    "yarn": Qwen2Config(
        **SIZES, hidden_size=60, intermediate_size=64, num_attention_heads=5, num_key_value_heads=5,
        rope_parameters=YARN,
    ),
}  # fmt: skip
