"""Sizes that no model can have are refused by key, and nothing crashes on them."""

from __future__ import annotations

import pytest

from bringup.diagnostics import BringupError
from bringup.graphs.gpt2 import SIZES, GPT2Config
from bringup.graphs.llama import LlamaConfig

LLAMA = {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "model_type": "mistral",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("num_hidden_layers", 0),
        ("vocab_size", -4),
        ("head_dim", 5),
        ("sliding_window", -1),
        ("rope_theta", 0.0),
        ("rope_theta", -1.0),
    ],
)
def test_impossible_sizes_of_llama(key, value):
    with pytest.raises(BringupError) as caught:
        LlamaConfig.from_hf(LLAMA | {key: value})
    assert {(finding.code, finding.parameter) for finding in caught.value.findings} == {("BU121", key)}


def test_a_rope_factor_of_zero():
    with pytest.raises(BringupError, match=r"BU121.*`rope_scaling.factor` is 0"):
        LlamaConfig.from_hf(LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 0.0}})


@pytest.mark.parametrize("key", ["n_head", "n_layer", "n_embd", "vocab_size", "n_positions"])
def test_impossible_sizes_of_gpt2(key):
    with pytest.raises(BringupError, match=f"BU121.*`{key}`"):
        GPT2Config.from_hf(SIZES["gpt2"] | {key: 0})


@pytest.mark.parametrize("value", [False, 0])
def test_an_unknown_key_that_switches_off_is_an_error(value):
    with pytest.raises(BringupError, match=r"BU120.*use_rope"):
        LlamaConfig.from_hf(LLAMA | {"use_rope": value})


def test_an_unknown_key_that_says_nothing_is_a_note():
    _, findings = LlamaConfig.read(LLAMA | {"new_key": None})
    assert [(finding.code, finding.severity) for finding in findings] == [("BU120", "note")]
