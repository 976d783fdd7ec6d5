"""Qwen3 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen3Config

from bringup.graphs.qwen3 import Qwen3Config as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}  # longer sequences than 64 turn slower
CASES: dict[str, PreTrainedConfig] = {
    "one-key-head-tied": Qwen3Config(
        **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, num_key_value_heads=1, head_dim=10,
        tie_word_embeddings=True, rms_norm_eps=1e-3,
    ),
    "windows-biases": Qwen3Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=40, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, head_dim=12, use_sliding_window=True, sliding_window=9, max_window_layers=1,
        attention_bias=True,
    ),
    "yarn": Qwen3Config(
        **SIZES, hidden_size=30, intermediate_size=64, num_attention_heads=5, num_key_value_heads=5, head_dim=14,
        rope_parameters=YARN,
    ),
    "dynamic": Qwen3Config(
        **SIZES | {"max_position_embeddings": 64}, hidden_size=36, intermediate_size=40, num_attention_heads=3,
        num_key_value_heads=1, head_dim=12, rope_parameters=DYNAMIC,
    ),
}  # fmt: skip


NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@pytest.mark.parametrize("windows", [False, True])
def test_keys_that_are_absent(windows: bool) -> None:
    """They mean what transformers takes them for."""
    sizes = dict(zip(NEEDED, (151, 64, 48, 31, 32), strict=True))
    given = sizes | {"use_sliding_window": windows}
    whole = json.loads(Qwen3Config(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(given).windows == (None,) * 28 + (4096 if windows else None,) * 3
