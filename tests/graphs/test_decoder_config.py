"""What configs mean that leave keys out, and how long a model's context is, against transformers and SGLang's rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers

from bringup.graphs.config.fields import MOST_ELEMENTS
from bringup.graphs.decoder import DecoderConfig
from bringup.graphs.llama import LlamaConfig
from bringup.graphs.mixtral import MixtralConfig
from bringup.graphs.qwen2 import Qwen2Config
from tests.graphs.rope_types import LONG, SHORT

KINDS: dict[str, tuple[type[DecoderConfig], type[Any]]] = {
    "llama": (LlamaConfig, transformers.LlamaConfig),
    "mistral": (LlamaConfig, transformers.MistralConfig),
    "ministral": (LlamaConfig, transformers.MinistralConfig),
    "mixtral": (MixtralConfig, transformers.MixtralConfig),
    "qwen2": (Qwen2Config, transformers.Qwen2Config),
}
SIZES = {"vocab_size": 99, "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 30}
SIZES |= {"num_attention_heads": 32}
# the key in transformers' config, and what it is here
SAME = {
    "max_position_embeddings": "max_positions",
    "num_key_value_heads": "num_kv_heads",
    "rms_norm_eps": "eps",
    "tie_word_embeddings": "tied_head",
    "hidden_act": "activation",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}


def windows(config: Any) -> tuple[int | None, ...]:
    """By transformers' own words: `layer_types` where there are, otherwise `sliding_window` for every layer."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def assert_same(name: str, raw: dict[str, Any]) -> None:
    ours, theirs = KINDS[name]
    config, wanted = ours.from_hf({"model_type": name} | raw), theirs(**raw)
    read = {key: getattr(config, here) for key, here in SAME.items() if hasattr(config, here) and hasattr(wanted, key)}
    assert len(read) >= 5
    assert read == {key: getattr(wanted, key) for key in read}
    assert config.rope.theta == wanted.rope_parameters["rope_theta"]
    assert config.head_dim == (getattr(wanted, "head_dim", None) or wanted.hidden_size // wanted.num_attention_heads)
    assert config.windows == windows(wanted)


@pytest.mark.parametrize("name", KINDS)
def test_absent_keys_mean_what_transformers_takes_them_for(name: str) -> None:
    assert_same(name, SIZES)


NULLS = [(name, "head_dim") for name in ("llama", "mistral", "ministral", "mixtral")]
NULLS += [(name, "sliding_window") for name in ("mistral", "mixtral", "qwen2")]
NULLS += [(name, "num_key_value_heads") for name in ("llama", "qwen2")]


@pytest.mark.parametrize(("name", "key"), NULLS)
def test_null_is_another_thing_than_absent(name: str, key: str) -> None:
    """Of the keys that transformers lets be null."""
    assert_same(name, SIZES | {key: None})


@pytest.mark.parametrize("more", [{}, {"sliding_window": 7}, {"max_window_layers": 3}, {"sliding_window": None}])
def test_qwen2s_windows_once_they_are_used(more: dict[str, Any]) -> None:
    assert_same("qwen2", SIZES | {"use_sliding_window": True} | more)


def sglang(raw: dict[str, Any]) -> int:
    """`get_context_length` of SGLang's python/sglang/srt/hf_transformers_utils.py: the factor counts unless its origin
    is stated."""
    rope = raw.get("rope_scaling") or {}
    stretched = "original_max_position_embeddings" in rope or rope.get("rope_type") == "llama3"
    return int(raw["max_position_embeddings"] * (1 if stretched else rope.get("factor", 1)))


ORIGINAL = {"original_max_position_embeddings": 32}
ROPES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "linear-original": {"rope_type": "linear", "factor": 2.5} | ORIGINAL,
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn-original": {"rope_type": "yarn", "factor": 4.0} | ORIGINAL,
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    "longrope-factor": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 3.0},
    "longrope-original": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG} | ORIGINAL,
}


@pytest.mark.parametrize("name", ROPES)
def test_the_context_is_as_long_as_sglang_finds_it(name: str) -> None:
    raw = SIZES | {"max_position_embeddings": 131, "rope_scaling": ROPES[name]}
    assert LlamaConfig.from_hf(raw).max_positions == sglang(raw)


def test_an_origin_next_to_rope_is_an_origin() -> None:
    """Phi-3 states it there; SGLang does not look, and there is no factor that it could count."""
    raw = SIZES | {"max_position_embeddings": 131, "rope_scaling": ROPES["longrope"]} | ORIGINAL
    assert LlamaConfig.from_hf(raw).max_positions == sglang(raw) == 131


@pytest.mark.parametrize("key", ["max_sequence_length", "seq_length", "max_seq_len", "model_max_length"])
def test_other_keys_of_the_context(key: str) -> None:
    """Without `max_position_embeddings` the key is the context; otherwise a shorter length counts, a longer warns."""
    assert LlamaConfig.from_hf(SIZES | {key: 4096}).max_positions == 4096
    assert LlamaConfig.from_hf(SIZES | {key: 77}).max_positions == 77
    assert LlamaConfig.from_hf(SIZES | {key: None}).max_positions == 2048
    assert LlamaConfig.from_hf(SIZES | {key: 77, "max_position_embeddings": 131}).max_positions == 77
    config, findings = LlamaConfig.read(SIZES | {key: 200, "max_position_embeddings": 131})
    assert (config.max_positions, [(f.code, f.parameter) for f in findings]) == (131, [("BU151", key)])


def test_several_keys_of_the_context() -> None:
    """The shortest counts. A longer one is a warning that names the key of the shortest before it."""
    keys = {"max_seq_len": 64, "model_max_length": 77}
    assert LlamaConfig.from_hf(SIZES | keys).max_positions == 64
    for more in ({}, {"max_position_embeddings": 131}):
        config, (finding,) = LlamaConfig.read(SIZES | keys | more)
        assert config.max_positions == 64
        assert finding.message.startswith("config sets `model_max_length` = 77 and `max_seq_len` = 64")


def test_a_context_has_a_token_and_fits_a_number() -> None:
    for factor, wanted in ((1e-9, 1), (1e17, MOST_ELEMENTS)):
        raw = SIZES | {"max_position_embeddings": 131, "rope_scaling": {"rope_type": "linear", "factor": factor}}
        assert LlamaConfig.from_hf(json.loads(json.dumps(raw))).max_positions == wanted
