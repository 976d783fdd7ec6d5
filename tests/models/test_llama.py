"""Llama, Mistral and SmolLM2 shapes: config.json as transformers writes it, and parity with its forward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.llama import LlamaConfig as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # well under the prompt: all three bands of frequencies occur
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def shape(hidden: int, ffn: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return SIZES | dict(zip(names, (hidden, ffn, heads, kv), strict=True)) | more


CASES: dict[str, PreTrainedConfig] = {
    "every-head-its-own-keys": LlamaConfig(**shape(48, 92, 3, 3, num_hidden_layers=3)),
    "smollm2-tied": LlamaConfig(
        **shape(90, 96, 9, 3, tie_word_embeddings=True, rope_parameters={"rope_theta": 1e5, "rope_type": "default"})
    ),
    "one-key-head-biases": LlamaConfig(**shape(40, 52, 5, 1, attention_bias=True, mlp_bias=True)),
    "head-dim-llama3": LlamaConfig(
        **shape(42, 60, 7, 1, head_dim=16, tie_word_embeddings=True, rope_parameters=LLAMA3, rms_norm_eps=1e-3)
    ),
    "linear-gelu": LlamaConfig(**shape(36, 50, 3, 1, rope_parameters=LINEAR, hidden_act="gelu")),
    "mistral-window": MistralConfig(**shape(32, 66, 6, 2, head_dim=12, sliding_window=40)),
    "mistral-layer-types": MistralConfig(
        **shape(32, 40, 3, 3, num_hidden_layers=3, sliding_window=40, head_dim=14),
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}
BFLOAT16 = ("smollm2-tied", "mistral-window")


@pytest.mark.slow
def test_chunks_and_padding(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES["mistral-window"], tmp_path / "model")
    parity.assert_chunks_and_padding(folder, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("smollm2-tied", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
        ("head-dim-llama3", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
        ("head-dim-llama3", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 512}}),
        ("head-dim-llama3", {"rope_parameters": LLAMA3 | {"low_freq_factor": 0.5}}),
        ("head-dim-llama3", {"rope_parameters": LLAMA3 | {"high_freq_factor": 3.0}}),
        ("head-dim-llama3", {"rms_norm_eps": 1e-6}),
        ("linear-gelu", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
        ("linear-gelu", {"hidden_act": "gelu_new"}),
        ("mistral-window", {"sliding_window": 41}),
        ("mistral-layer-types", {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    ],
)
def test_every_setting_matters(name: str, setting: dict[str, Any], tmp_path: Path) -> None:
    """Nor would it if a setting were overlooked."""
    parity.assert_setting_matters(parity.save_checkpoint(CASES[name], tmp_path), **setting)


# --- config.json


def written(config: PreTrainedConfig, folder: Path) -> dict[str, Any]:
    config.to_json_file(folder / "config.json")
    return json.loads((folder / "config.json").read_text("utf-8"))


def before_5(raw: dict[str, Any]) -> dict[str, Any]:
    """The same words as transformers 4 wrote them."""
    old = {key: value for key, value in raw.items() if key not in ("rope_parameters", "dtype")}
    rope = dict(raw["rope_parameters"])
    theta = rope.pop("rope_theta")
    return old | {
        "rope_theta": theta,
        "rope_scaling": None if rope == {"rope_type": "default"} else rope,
        "torch_dtype": "float32",
    }


@pytest.mark.parametrize("config", [LlamaConfig(), MistralConfig(), *CASES.values()])
def test_configs_are_read_in_both_styles(config: PreTrainedConfig, tmp_path: Path) -> None:
    raw = written(config, tmp_path)
    ours = OurConfig.from_hf(raw)
    assert OurConfig.from_hf(before_5(raw)) == ours
    assert (ours.hidden, ours.ffn) == (config.hidden_size, config.intermediate_size)
    assert (ours.num_heads, ours.num_kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert ours.head_dim == (config.head_dim or config.hidden_size // config.num_attention_heads)
    assert ours.rope.theta == config.rope_parameters["rope_theta"]
    assert len(ours.windows) == config.num_hidden_layers


def test_the_oldest_rope_spelling(tmp_path: Path) -> None:
    raw = written(CASES["linear-gelu"], tmp_path)
    old = before_5(raw) | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert OurConfig.from_hf(old) == OurConfig.from_hf(raw)


@pytest.mark.parametrize("kind", [LlamaConfig, MistralConfig])
def test_no_key_is_overlooked(kind: type[PreTrainedConfig], tmp_path: Path) -> None:
    """Whatever transformers writes is known to change no number, or nonsense in it is refused."""
    raw = written(kind(**shape(32, 40, 4, 2)), tmp_path)
    for key in raw.keys() - NEUTRAL:
        with pytest.raises(BringupError, match=r"BU12[0-2]"):
            OurConfig.from_hf(raw | {key: "nonsense"})


ROPE = {"rope_theta": 10000.0}
MISTRAL = {"model_type": "mistral"}


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "rope_type", {"rope_parameters": ROPE | {"rope_type": "spiral", "factor": 4.0}}),
        ("BU122", "rope_type", {"rope_parameters": None, "rope_scaling": {"type": "spiral", "factor": 2.0}}),
        ("BU121", "low_freq_factor", {"rope_parameters": {k: v for k, v in LLAMA3.items() if k[0] != "l"}}),
        ("BU121", "factor", {"rope_parameters": ROPE | {"rope_type": "linear"}}),
        ("BU120", "partial_rotary_factor", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
        ("BU120", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("BU120", "attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
        ("BU122", "hidden_act", {"hidden_act": "quick_gelu"}),
        ("BU121", "num_key_value_heads", {"num_key_value_heads": 3}),
        ("BU121", "vocab_size", {"vocab_size": None}),
        (
            "BU121",
            "sliding_window",
            {"model_type": "mistral", "sliding_window": None, "layer_types": ["sliding_attention"] * 2},
        ),
        ("BU122", "layer_types", MISTRAL | {"layer_types": ["chunked_attention"] * 2}),
        # transformers' Llama computes neither, and its cache forgets keys for both
        ("BU122", "sliding_window", {"sliding_window": 40}),
        ("BU122", "layer_types", {"layer_types": ["sliding_attention"] * 2}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any], tmp_path: Path) -> None:
    raw = written(LlamaConfig(**shape(32, 40, 4, 2)), tmp_path) | changes
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(raw)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]


def test_an_unknown_key_can_be_allowed(tmp_path: Path) -> None:
    raw = written(LlamaConfig(**shape(32, 40, 4, 2)), tmp_path)
    assert OurConfig.from_hf(raw | {"my_note": 1}, {"my_note": "bookkeeping"}) == OurConfig.from_hf(raw)
    assert OurConfig.from_hf(raw | {"sliding_window": 40}, {"sliding_window": "unused"}) == OurConfig.from_hf(raw)
