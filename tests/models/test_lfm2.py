"""LFM2 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

from typing import Any

from transformers import Lfm2Config, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024, "block_multiple_of": 2}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
TYPES = ["conv", "full_attention", "conv"]
CASES: dict[str, PreTrainedConfig] = {
    "three-taps": Lfm2Config(
        **SIZES, hidden_size=40, intermediate_size=99, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=1, layer_types=TYPES, tie_word_embeddings=False,
    ),
    "biases-tied": Lfm2Config(
        **SIZES, hidden_size=36, intermediate_size=50, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, conv_L_cache=4, conv_bias=True, norm_eps=1e-3, full_attn_idxs=[0],
        block_ffn_dim_multiplier=1.3, rope_parameters=LINEAR,
    ),
    "long-convolution": Lfm2Config(
        **SIZES, hidden_size=30, intermediate_size=44, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, conv_L_cache=70, layer_types=TYPES[:2], block_auto_adjust_ff_dim=False,
    ),
}  # fmt: skip
