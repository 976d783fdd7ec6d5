"""DeepSeek-V3 shapes: cases of test_families.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, PreTrainedConfig

from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 25,
    "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "groups-yarn": DeepseekV3Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=16, n_group=4, topk_group=2, rope_parameters=YARN,
    ),
    "straight-queries-more-experts-than-tokens": DeepseekV3Config(
        **SIZES, hidden_size=35, intermediate_size=44, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=None, kv_lora_rank=11, qk_nope_head_dim=6, qk_rope_head_dim=8,
        v_head_dim=5, first_k_dense_replace=0, n_routed_experts=69, num_experts_per_tok=6, n_shared_experts=1,
        moe_intermediate_size=10, n_group=3, topk_group=1, norm_topk_prob=False, tie_word_embeddings=True,
    ),
    "dense-halves-biases": DeepseekV3Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=2, n_routed_experts=2, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=14, n_group=1, topk_group=1, rope_interleave=False, attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    ),
}  # fmt: skip


def save_biased(config: PreTrainedConfig, folder: Path, dtype: str = "float32") -> Path:
    """As transformers saves it, with biases of the router: most below 0, so that a masked group's 0 would win."""
    parity.save_checkpoint(config, folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    random = torch.Generator().manual_seed(1)
    for name, values in tensors.items():
        if name.endswith("e_score_correction_bias"):
            values.normal_(-1.5, 0.5, generator=random)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(save_biased(CASES[name], folder, dtype), folder)
