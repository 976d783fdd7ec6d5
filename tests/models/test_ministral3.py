"""Ministral 3 shapes: cases of test_families.py. Queries grow within the tokens of the tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig
from transformers.models.ministral3 import Ministral3Config

from bringup.diagnostics import BringupError
from bringup.graphs.ministral3 import Ministral3Config as OurConfig
from tests.models.test_deepseek_v3 import YARN

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024, "num_hidden_layers": 2}
CASES: dict[str, PreTrainedConfig] = {
    "window-yarn-tied": Ministral3Config(
        **SIZES, hidden_size=42, intermediate_size=60, num_attention_heads=7, num_key_value_heads=1, head_dim=12,
        sliding_window=25, tie_word_embeddings=True, rms_norm_eps=1e-3,
        rope_parameters=YARN | {"llama_4_scaling_beta": 0.3, "max_position_embeddings": 1024},
    ),
    "linear-gelu": Ministral3Config(
        **SIZES, hidden_size=30, intermediate_size=34, num_attention_heads=3, num_key_value_heads=3, head_dim=8,
        hidden_act="gelu",
        rope_parameters={
            "rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 7,
        },
    ),
    "shrinking": Ministral3Config(
        **SIZES, hidden_size=24, intermediate_size=26, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": -0.2,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "absent", [set[str](), {"rope_parameters"}, {"head_dim", "num_key_value_heads", "rms_norm_eps"}]
)
def test_keys_that_are_absent(absent: set[str]) -> None:
    """transformers' defaults: yarn, with queries that grow every 16384 positions."""
    raw = json.loads(Ministral3Config().to_json_string(use_diff=False))
    whole = OurConfig.from_hf(raw)
    assert (whole.growth, whole.rope.kind, whole.rope.factor, whole.rope.theta) == ((0.1, 16384), "yarn", 16.0, 1e6)
    assert OurConfig.from_hf({key: value for key, value in raw.items() if key not in absent}) == whole


ROPE: dict[str, Any] = {"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.2}
ORIGINAL = {"original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_parameters": ROPE},
        {"rope_parameters": ROPE | ORIGINAL},
        {"rope_scaling": ROPE | ORIGINAL, "rope_parameters": ROPE},
        {"rope_parameters": ROPE | {"original_max_position_embeddings": 7}, **ORIGINAL},
        {"rope_scaling": {}, **ORIGINAL},
    ],
)
def test_the_period_of_growth(keys: dict[str, Any]) -> None:
    """The positions of the config, unless it states the original context; one outside of rope's settings precedes."""
    raw = json.loads(json.dumps(SIZES | {"hidden_size": 24, "num_attention_heads": 4} | keys))
    ours, _ = OurConfig.read(raw)
    theirs = Ministral3Config(**raw)
    theirs.standardize_rope_params()  # as their model does
    rope = theirs.rope_parameters
    assert ours.growth == (rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"])


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU121", "llama_4_scaling_beta", {"rope_parameters": {"original_max_position_embeddings": 16}}),
        ("BU121", "llama_4_scaling_beta", {"rope_parameters": YARN}),
        ("BU121", "llama_4_scaling_beta", {"rope_parameters": YARN | {"llama_4_scaling_beta": None}}),
        (
            "BU121",
            "original_max_position_embeddings",
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
        ),
        ("BU121", "rope_parameters", {"rope_parameters": "yarn"}),
        ("BU121", "head_dim", {"head_dim": None}),
        ("BU121", "num_key_value_heads", {"num_key_value_heads": None}),
        ("BU120", "attention_bias", {"attention_bias": True}),
        ("BU122", "layer_types", {"layer_types": ["sliding_attention"] * 2}),
    ],
)
def test_rejected_configs(code: str, key: str, changes: dict[str, Any]) -> None:
    """Each fault is one error."""
    raw = json.loads(CASES["linear-gelu"].to_json_string(use_diff=False))
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(raw | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
