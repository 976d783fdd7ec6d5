"""DeepSeek-V2 shapes: cases of test_families.py."""

from __future__ import annotations

from typing import Any

from transformers import DeepseekV2Config, PreTrainedConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 25,
    "mscale": 0.707, "mscale_all_dim": 0.9, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "groups-yarn": DeepseekV2Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=3, num_attention_heads=3, q_lora_rank=20,
        kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, first_k_dense_replace=1,
        n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16, n_group=4,
        topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=16.0, rope_parameters=YARN,
    ),
    "lite-more-experts-than-tokens": DeepseekV2Config(
        **SIZES, hidden_size=35, intermediate_size=44, num_hidden_layers=2, num_attention_heads=5, q_lora_rank=None,
        kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=5, first_k_dense_replace=1,
        n_routed_experts=67, num_experts_per_tok=6, n_shared_experts=1, moe_intermediate_size=10,
        tie_word_embeddings=True,
    ),
    "dense-biases": DeepseekV2Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=2, num_attention_heads=1, q_lora_rank=9,
        kv_lora_rank=8, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9, first_k_dense_replace=1,
        n_routed_experts=2, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=14, mlp_bias=True,
        attention_bias=True, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    ),
}  # fmt: skip
