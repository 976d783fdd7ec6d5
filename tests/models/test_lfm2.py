"""LFM2 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import pytest
from transformers import Lfm2Config, PreTrainedConfig

from bringup.compile.job import Job, open_job
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.lfm2 import Lfm2Config as OurConfig
from tests.graphs import published

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024, "block_multiple_of": 2}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
TYPES = ["conv", "full_attention", "conv"]
CASES: dict[str, PreTrainedConfig] = {
    "three-taps": Lfm2Config(
        **SIZES, hidden_size=40, intermediate_size=99, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=1, layer_types=TYPES, tie_word_embeddings=False,
    ),
    "biases-tied": Lfm2Config(
        **SIZES, hidden_size=36, intermediate_size=50, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, conv_L_cache=4, conv_bias=True, norm_eps=1e-3, full_attn_idxs=[0],
        block_ffn_dim_multiplier=1.3, rope_parameters=LINEAR,
    ),
    "long-convolution": Lfm2Config(
        **SIZES, hidden_size=30, intermediate_size=44, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, conv_L_cache=70, layer_types=TYPES[:2], block_auto_adjust_ff_dim=False,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: dict[str, Any] = published.PUBLISHED["lfm2"]["LiquidAI/LFM2-1.2B"]


@pytest.mark.parametrize(
    "more", [{}, {"block_ffn_dim_multiplier": 0.7}, {"full_attn_idxs": [1]}, {"full_attn_idxs": []}]
)
def test_keys_that_are_absent(more: dict[str, Any]) -> None:
    """They mean what transformers takes them for."""
    given = dict(zip(NEEDED, (151, 64, 4803, 3, 8), strict=True)) | more
    whole = json.loads(Lfm2Config(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(given).with_attention == tuple(
        index in more.get("full_attn_idxs", range(3)) for index in range(3)
    )


def test_the_published_config() -> None:
    """1.17 billion parameters, the head among them once."""
    shapes = {name: tuple(a.size for a in p.axes) for name, p in job(PUBLISHED).graph.signature().items()}
    assert round(sum(prod(shape) for name, shape in shapes.items() if name != "lm_head.weight") / 1e9, 2) == 1.17
    assert shapes["model.layers.15.mlp.gate_proj.weight"] == (8192, 2048)
    assert shapes["model.layers.15.mixer.conv.weight"] == (2048, 3)
    assert shapes["model.layers.14.self_attn.k_norm.weight"] == (64,)


def test_newer_keys() -> None:
    newer = published.PUBLISHED["lfm2"]["LiquidAI/LFM2.5-1.2B-Thinking"]
    assert OurConfig.from_hf(newer) == OurConfig.from_hf(PUBLISHED)


def job(config: dict[str, Any]) -> Job:
    return open_job("lfm2", "dummy", config=config)


@pytest.mark.parametrize(
    ("key", "older", "value"),
    [("intermediate_size", "block_ff_dim", 999), ("tie_word_embeddings", "tie_embedding", False)],
)
def test_older_keys_win(key: str, older: str, value: Any) -> None:
    """As in transformers; a contradiction is a warning."""
    raw = PUBLISHED | {older: value}
    theirs = Lfm2Config(**raw)
    assert getattr(theirs, key) == value
    config, findings = OurConfig.read(raw | {key: getattr(Lfm2Config(), key)})
    assert config == OurConfig.from_hf(json.loads(theirs.to_json_string(use_diff=False)))
    assert [(finding.code, finding.parameter) for finding in findings] == [("BU151", key)]


def test_layer_types_win() -> None:
    """As in transformers; other `full_attn_idxs` are a warning."""
    raw = PUBLISHED | {"num_hidden_layers": 3, "layer_types": TYPES}
    config, findings = OurConfig.read(raw)
    assert config.with_attention == (False, True, False)
    assert [(finding.code, finding.parameter) for finding in findings] == [("BU151", "full_attn_idxs")]


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("BU121", "conv_L_cache", 0),
        ("BU121", "conv_bias", None),
        ("BU121", "num_key_value_heads", 5),
        ("BU121", "block_multiple_of", 0),
        ("BU121", "block_ffn_dim_multiplier", None),
        ("BU121", "block_ffn_dim_multiplier", 1e-9),
        ("BU121", "block_ffn_dim_multiplier", 1e306),
        ("BU121", "full_attn_idxs", "all"),
        ("BU122", "layer_types", ["conv"] * 15),
        ("BU122", "layer_types", ["sliding_attention"] * 16),
        ("BU122", "block_dim", 1024),
        ("BU122", "conv_dim", 1024),
        ("BU122", "conv_dim_out", 1024),
        ("BU122", "num_heads", 16),
        ("BU122", "theta", 1e4),
        ("BU122", "block_norm_eps", 1e-6),
        ("BU122", "block_use_swiglu", False),
        ("BU122", "use_pos_enc", False),
        ("BU122", "hidden_act", "gelu"),
        ("BU120", "sliding_window", 4096),
        ("BU120", "attention_bias", True),
    ],
)
def test_configs_that_are_refused(code: str, key: str, value: Any) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(PUBLISHED | {key: value})
    errors = [finding for finding in caught.value.findings if finding.severity is Severity.ERROR]
    assert [(finding.code, finding.parameter) for finding in errors] == [(code, key)]
