"""MiniMax-M2 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import MiniMaxM2Config, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.minimax_m2 import MiniMaxM2Config as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "part-turns-more-experts-than-tokens": MiniMaxM2Config(
        **SIZES, hidden_size=30, intermediate_size=22, num_attention_heads=5, num_key_value_heads=1, head_dim=12,
        rotary_dim=6, num_local_experts=67, num_experts_per_tok=2,
    ),
    "yarn-tied": MiniMaxM2Config(
        **SIZES, hidden_size=42, intermediate_size=14, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
        num_local_experts=4, num_experts_per_tok=3, tie_word_embeddings=True, rope_parameters=YARN, rms_norm_eps=1e-3,
    ),
}  # fmt: skip
SAID: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 34, "num_attention_heads": 16, "num_hidden_layers": 3,
}  # fmt: skip
# The keys of MiniMaxAI/MiniMax-M2 that transformers does not read, for three layers.
PUBLISHED: dict[str, Any] = {
    "attn_type_list": [1, 1, 1],
    "attention_bias": False,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "norm_topk_prob": True,
    "shared_intermediate_size": 0,
}
DRAFTS = {"use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"rotary_dim": 64},
        {"rotary_dim": 64, "partial_rotary_factor": 0.25},
        {"rotary_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rotary_dim": 64, "rope_theta": 1e4, "num_experts": 5, "num_experts_per_tok": 2},
    ],
)
def test_keys_that_are_absent(words: dict[str, Any]) -> None:
    """transformers' own defaults, and `rotary_dim`, which `partial_rotary_factor` precedes."""
    theirs = json.loads(MiniMaxM2Config(**SAID | words).to_json_string(use_diff=False))
    assert OurConfig.from_hf(SAID | words) == OurConfig.from_hf(theirs)


def test_keys_of_the_published_config() -> None:
    """They state what transformers computes without them; other values are rejected."""
    assert OurConfig.from_hf(SAID | PUBLISHED | DRAFTS) == OurConfig.from_hf(SAID)
    for key, value in PUBLISHED.items():
        other = [0, 1, 1] if isinstance(value, list) else "other" if isinstance(value, str) else not value or 8
        with pytest.raises(BringupError, match=f"BU122.*{key}"):
            OurConfig.from_hf(SAID | PUBLISHED | {key: other})
