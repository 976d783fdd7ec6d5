"""Qwen3-Next shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen3NextConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.qwen3_next import Qwen3NextConfig as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": Qwen3NextConfig(
        **SIZES, num_hidden_layers=3, full_attention_interval=2, hidden_size=30, intermediate_size=44, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, linear_key_head_dim=12, linear_value_head_dim=10, linear_num_key_heads=2,
        linear_num_value_heads=6, moe_intermediate_size=22, shared_expert_intermediate_size=36, num_experts=67,
        num_experts_per_tok=3, rms_norm_eps=1e-3,
    ),
    "dense-layers-biases-tied": Qwen3NextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=50, num_attention_heads=3,
        num_key_value_heads=1, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=16, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_conv_kernel_dim=3, moe_intermediate_size=26,
        shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
        mlp_only_layers=[0], layer_types=["full_attention", "linear_attention", "linear_attention"],
        decoder_sparse_step=1, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5, hidden_act="gelu",
    ),
    "every-expert-linear-rope": Qwen3NextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=40, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=8, linear_num_key_heads=1,
        linear_num_value_heads=4, moe_intermediate_size=34, shared_expert_intermediate_size=34, num_experts=4,
        num_experts_per_tok=4, decoder_sparse_step=2, rope_parameters=LINEAR,
        layer_types=["linear_attention", "full_attention"],
    ),
}  # fmt: skip
