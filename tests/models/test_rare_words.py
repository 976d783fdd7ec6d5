"""Values of config words that few checkpoints have and transformers computes: cases of test_families.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import (
    BloomConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4MoeConfig,
    GPTNeoXConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LATENT: dict[str, Any] = SIZES | {
    "hidden_size": 40, "intermediate_size": 30, "moe_intermediate_size": 12, "num_attention_heads": 5,
    "num_key_value_heads": 5, "q_lora_rank": 7, "kv_lora_rank": 10, "qk_rope_head_dim": 6, "qk_nope_head_dim": 10,
    "v_head_dim": 8, "n_routed_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 3,
}  # fmt: skip
LONG = {"short_factor": [1.0, 1.3], "long_factor": [1.5, 9.0]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.45}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "partial_rotary_factor": 0.6,
}  # fmt: skip
NEOX: dict[str, Any] = SIZES | {"hidden_size": 60, "intermediate_size": 34, "num_attention_heads": 5}  # 12 a head
EXPERTS: dict[str, Any] = {"hidden_size": 40, "intermediate_size": 34, "moe_intermediate_size": 12}
CASES: dict[str, PreTrainedConfig] = {
    "neox-3-of-12-channels": GPTNeoXConfig(**NEOX),
    "neox-1-of-4-channels": GPTNeoXConfig(**NEOX | {"hidden_size": 20}),
    "neox-5-of-12-dynamic": GPTNeoXConfig(**NEOX | {"max_position_embeddings": 24}, rope_parameters=DYNAMIC),
    "neox-7-of-12-llama3": GPTNeoXConfig(**NEOX, rope_parameters=LLAMA3),
    "glm4-5-of-10-channels": Glm4MoeConfig(
        **SIZES, **EXPERTS, num_attention_heads=4, num_key_value_heads=2, head_dim=10, n_routed_experts=4,
        num_experts_per_tok=2,
    ),
    "phi3-5-of-10-channels": Phi3Config(
        **SIZES, hidden_size=40, intermediate_size=34, num_attention_heads=4, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ),
    "bloom-slow-but-exact": BloomConfig(
        vocab_size=131, hidden_size=40, n_layer=2, n_head=5, slow_but_exact=True, pretraining_tp=4
    ),
    "bloom-slow-but-whole": BloomConfig(vocab_size=131, hidden_size=40, n_layer=2, n_head=5, slow_but_exact=True),
    "qwen3-moe-without-experts": Qwen3MoeConfig(
        **SIZES, **EXPERTS, num_attention_heads=4, num_key_value_heads=2, head_dim=10, num_experts=0
    ),
    "phi3-yarn": Phi3Config(
        **SIZES, hidden_size=16, intermediate_size=34, num_attention_heads=4, pad_token_id=0,
        original_max_position_embeddings=50, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4} | LONG,
    ),
    "deepseek-v3-every-other": DeepseekV3Config(
        **LATENT, n_group=1, topk_group=1, first_k_dense_replace=1, moe_layer_freq=2
    ),
    "deepseek-v2-every-other": DeepseekV2Config(**LATENT, first_k_dense_replace=1, moe_layer_freq=2),
    "deepseek-v2-normalised": DeepseekV2Config(**LATENT, norm_topk_prob=True, routed_scaling_factor=3.0),
}  # fmt: skip
# What config.json states, where transformers saves another word for it.
SAID: dict[str, dict[str, Any]] = {
    "phi3-yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "partial_rotary_factor": 1.0} | LONG},
    "deepseek-v3-every-other": {"moe_layer_freq": 2},
    "deepseek-v2-every-other": {"moe_layer_freq": 2},
    "deepseek-v2-normalised": {"norm_topk_prob": True},
    "bloom-slow-but-exact": {"slow_but_exact": True, "pretraining_tp": 4},
}


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    parity.save_checkpoint(CASES[name], folder, dtype)
    file = folder / "config.json"
    words = json.loads(file.read_text("utf-8")) | SAID.get(name, {})
    file.write_text(json.dumps(words), "utf-8")
    return family.Written(folder, folder)
