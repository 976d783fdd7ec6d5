"""DeepSeek-V3.2 shapes: cases of test_families.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.deepseek_v32 import DeepseekV32Config

from tests.models import family
from tests.models.test_deepseek_v3 import YARN, save_biased

# Enough heads that keys whose scores are 0, all of them negative products, do not meet at the boundary: which of those
# are chosen, transformers leaves open.
SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "few-keys-yarn": DeepseekV32Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=16, n_group=4, topk_group=2, index_n_heads=13, index_head_dim=10, index_topk=7,
        rope_parameters=YARN,
    ),
    "dense-in-the-middle": DeepseekV32Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        mlp_layer_types=["sparse", "dense", "sparse"], n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=14, n_group=1, topk_group=1, attention_bias=True, index_n_heads=16, index_head_dim=4,
        index_topk=33, tie_word_embeddings=True,
    ),
    "more-keys-than-there-are": DeepseekV32Config(
        **SIZES, hidden_size=36, intermediate_size=44, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=13, kv_lora_rank=11, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=5,
        first_k_dense_replace=0, n_routed_experts=9, num_experts_per_tok=4, n_shared_experts=1,
        moe_intermediate_size=10, n_group=3, topk_group=2, norm_topk_prob=False, index_n_heads=3, index_head_dim=13,
        index_topk=200,
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(save_biased(CASES[name], folder, dtype), folder)
