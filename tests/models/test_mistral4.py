"""Mistral 4 shapes: cases of test_families.py. Queries grow within the tokens of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig
from transformers.models.mistral4 import Mistral4Config

from bringup.graphs.mistral4 import Mistral4Config as OurConfig
from tests.models import family, parity
from tests.models.test_deepseek_v3 import YARN

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "groups-yarn-tied": Mistral4Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=16, n_group=4, topk_group=2, routed_scaling_factor=1.5, tie_word_embeddings=True,
        rope_parameters=YARN | {"llama_4_scaling_beta": 0.3, "max_position_embeddings": 1024},
    ),
    "straight-queries-halves-biases": Mistral4Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=None, kv_lora_rank=11, qk_nope_head_dim=8, qk_rope_head_dim=8,
        v_head_dim=5, n_routed_experts=69, num_experts_per_tok=6, moe_intermediate_size=10, n_group=1, topk_group=1,
        norm_topk_prob=False, rope_interleave=False, attention_bias=True,
        rope_parameters={
            "rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 16,
        },
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(parity.save_checkpoint(CASES[name], folder, dtype), folder)


def test_without_rope_s_settings() -> None:
    """transformers' defaults: yarn, with queries that grow every 8192 positions."""
    raw = {key: value for key, value in Mistral4Config().to_dict().items() if value is not None}
    whole = OurConfig.from_hf(raw)
    assert (whole.growth, whole.rope.kind, whole.rope.factor) == ((0.1, 8192), "yarn", 128.0)
    assert OurConfig.from_hf({key: value for key, value in raw.items() if key != "rope_parameters"}) == whole


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU121", "llama_4_scaling_beta", {"llama_4_scaling_beta": "x"}),
        ("BU121", "llama_4_scaling_beta", {"llama_4_scaling_beta": None}),
        ("BU122", "partial_rotary_factor", {"partial_rotary_factor": 0.25}),
    ],
)
def test_settings_of_rope_that_are_rejected(code: str, key: str, changes: dict[str, Any]) -> None:
    raw = CASES["groups-yarn-tied"].to_dict()
    _, findings = OurConfig.read(raw | {"rope_parameters": raw["rope_parameters"] | changes})
    assert [(finding.code, finding.parameter) for finding in findings] == [(code, key)]
