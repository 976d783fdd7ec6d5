"""GLM-4.7-Flash shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import Glm4MoeLiteConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.glm4_moe_lite import Glm4MoeLiteConfig as OurConfig
from tests.models.test_deepseek_v3 import SIZES, YARN

CASES: dict[str, PreTrainedConfig] = {
    "groups-yarn-tied": Glm4MoeLiteConfig(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16,
        n_group=4, topk_group=2, rope_parameters=YARN, tie_word_embeddings=True,
    ),
    "listed-layers-halves-biases": Glm4MoeLiteConfig(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=None, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=14, rope_interleave=False,
        attention_bias=True, norm_topk_prob=False, mlp_layer_types=["sparse", "dense", "sparse"],
    ),
}  # fmt: skip
SAID: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 34, "num_attention_heads": 20, "num_hidden_layers": 3,
}  # fmt: skip
# The keys of zai-org/GLM-4.7-Flash that transformers does not read.
PUBLISHED: dict[str, Any] = {
    "partial_rotary_factor": 1.0,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}


@pytest.mark.parametrize("words", [{}, {"mlp_layer_types": ["dense", "dense", "sparse"]}, {"q_lora_rank": None}])
def test_keys_that_are_absent(words: dict[str, Any]) -> None:
    theirs = json.loads(Glm4MoeLiteConfig(**SAID | words).to_json_string(use_diff=False))
    assert OurConfig.from_hf(SAID | words) == OurConfig.from_hf(theirs)


def test_keys_of_the_published_config() -> None:
    """They state what transformers computes without them; other values are rejected."""
    assert OurConfig.from_hf(SAID | PUBLISHED) == OurConfig.from_hf(SAID)
    for key, other in (("topk_method", "other"), ("scoring_func", "other"), ("partial_rotary_factor", 0.5)):
        with pytest.raises(BringupError, match=f"BU122.*{key}"):
            OurConfig.from_hf(SAID | PUBLISHED | {key: other})
