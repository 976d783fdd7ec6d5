"""Gemma 2 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma2Config, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.gemma2 import Gemma2Config as OurConfig
from tests.graphs import published
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, PreTrainedConfig] = {
    "one-key-head-low-caps": Gemma2Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=40, intermediate_size=66, num_attention_heads=5,
        num_key_value_heads=1, head_dim=12, sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0, rms_norm_eps=1e-3,
    ),
    "no-caps-untied-biases": Gemma2Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
        sliding_window=33, attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False,
        attention_bias=True, layer_types=["full_attention", "sliding_attention"], hidden_activation="gelu",
    ),
    "published-caps-yarn": Gemma2Config(
        **SIZES, hidden_size=36, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=14,
        sliding_window=20, query_pre_attn_scalar=14, rope_parameters=YARN,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: dict[str, Any] = published.PUBLISHED["gemma2"]["google/gemma-2-2b"]


def test_keys_that_are_absent() -> None:
    """They mean what transformers takes them for."""
    given = dict(zip(NEEDED, (151, 64, 48, 5, 32), strict=True))
    whole = json.loads(Gemma2Config(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(given).windows == (4096, None, 4096, None, 4096)


def test_the_published_config() -> None:
    ours = OurConfig.from_hf(PUBLISHED)
    assert (ours.query_scale, ours.score_cap, ours.logit_cap, ours.embedding_scale) == (1 / 16, 50.0, 30.0, 48.0)
    assert ours == OurConfig.from_hf(json.loads(Gemma2Config(**PUBLISHED).to_json_string(use_diff=False)))


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("BU122", "hidden_act", "silu"),
        ("BU122", "use_bidirectional_attention", True),
        ("BU121", "attn_logit_softcapping", 0.0),
        ("BU121", "query_pre_attn_scalar", None),
        ("BU121", "sliding_window", None),
        ("BU120", "num_experts", 8),
    ],
)
def test_configs_that_are_refused(code: str, key: str, value: Any) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(PUBLISHED | {key: value})
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]


@pytest.mark.parametrize(
    "setting",
    [
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 12},
        {"sliding_window": 10},
        {"hidden_activation": "relu"},
    ],
)
def test_every_setting_matters(setting: dict[str, Any], tmp_path: Path) -> None:
    """Parity would not hold if one were overlooked."""
    parity.assert_setting_matters(parity.save_checkpoint(CASES["one-key-head-low-caps"], tmp_path), **setting)
