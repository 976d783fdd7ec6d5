"""Gemma 3 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.gemma3 import Gemma3Config as OurConfig
from tests.graphs import published
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
TYPES = ["sliding_attention", "full_attention"]
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
}
CASES: dict[str, PreTrainedConfig] = {
    "one-key-head": Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=40, intermediate_size=66, num_attention_heads=5,
        num_key_value_heads=1, head_dim=12, sliding_window=9, query_pre_attn_scalar=20, rms_norm_eps=1e-3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "linear-in-full-layers": Gemma3TextConfig(
        **SIZES, hidden_size=36, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=14,
        sliding_window=20, query_pre_attn_scalar=14, rope_parameters=LINEAR, layer_types=TYPES,
    ),
    "logit-cap-untied-biases": Gemma3TextConfig(
        **SIZES, hidden_size=42, intermediate_size=50, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
        sliding_window=33, final_logit_softcapping=2.0, tie_word_embeddings=False, attention_bias=True,
        layer_types=TYPES[::-1], hidden_activation="gelu",
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: dict[str, Any] = published.PUBLISHED["gemma3"]["google/gemma-3-1b-it"]


def test_keys_that_are_absent() -> None:
    """They mean what transformers takes them for."""
    given = dict(zip(NEEDED, (151, 64, 48, 7, 32), strict=True))
    whole = json.loads(Gemma3TextConfig(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(given).windows == (4096,) * 5 + (None, 4096)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rope_theta": 2e6, "rope_local_base_freq": 3e4},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},  # of Gemma 3's larger models
        {"sliding_window_pattern": 3},
    ],
)
def test_older_words(more: dict[str, Any]) -> None:
    """Those of transformers 4 mean what transformers 5.23 makes of them."""
    theirs = json.loads(Gemma3TextConfig(**PUBLISHED | more).to_json_string(use_diff=False))
    assert "rope_local_base_freq" not in theirs
    ours = OurConfig.from_hf(PUBLISHED | more)
    assert ours == OurConfig.from_hf(theirs)
    assert ours.local_rope is not None
    assert (ours.rope.theta, ours.local_rope.theta) == (
        more.get("rope_theta", 1e6),
        more.get("rope_local_base_freq", 1e4),
    )
    assert ours.rope.kind == more.get("rope_scaling", {}).get("rope_type", "default")
    assert (ours.local_rope.kind, ours.max_positions) == ("default", 32768)


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
        ("BU122", "use_bidirectional_attention", {"use_bidirectional_attention": True}),
        ("BU121", "sliding_window_pattern", {"sliding_window_pattern": 0}),
        ("BU120", "chunked_attention", {"rope_parameters": {"chunked_attention": {"rope_type": "default"}}}),
        ("BU122", "rope_type", {"rope_parameters": {"sliding_attention": {"rope_type": "spiral"}}}),
        ("BU121", "rope_local_base_freq", {"rope_local_base_freq": "10k"}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(PUBLISHED | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]


@pytest.mark.parametrize(
    "setting",
    [
        {"rope_parameters": LINEAR | {"sliding_attention": LINEAR["full_attention"]}},
        {"rope_parameters": LINEAR | {"full_attention": LINEAR["sliding_attention"]}},
        {"query_pre_attn_scalar": 15},
        {"layer_types": TYPES[::-1]},
    ],
)
def test_every_setting_matters(setting: dict[str, Any], tmp_path: Path) -> None:
    """Parity would not hold if one were overlooked."""
    parity.assert_setting_matters(parity.save_checkpoint(CASES["linear-in-full-layers"], tmp_path), **setting)
