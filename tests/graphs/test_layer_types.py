"""Sliding windows by `layer_types`, `use_sliding_window` and `sliding_window`, compared with models of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bringup.diagnostics import Severity
from bringup.graphs.registry import by_name
from tests.models import family, parity

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 16}
# By `model_type`: the family, and its other sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}), "mistral": ("llama", {}), "ministral": ("llama", {}), "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}), "qwen2_moe": ("qwen2_moe", SHARED), "qwen3_moe": ("qwen3_moe", EXPERTS),
    "gemma2": ("gemma2", {}), "gemma3_text": ("gemma3", {}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": {"rope_theta": 1e4}}),
}  # fmt: skip
SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")  # families that have `use_sliding_window`
WINDOW, TOKENS = 4, 12
ROUNDING = 1e-5  # of logits below 1 in float32, in another order of sums; a window moves them by more than 1e-2
TYPES = ["sliding_attention", "full_attention"] * 2
WORDS: dict[str, dict[str, Any]] = {
    "types": {"layer_types": TYPES, "sliding_window": WINDOW},
    "types, no window": {"layer_types": TYPES},
    "types, null": {"layer_types": TYPES, "sliding_window": None},
    "types, zero": {"layer_types": TYPES, "sliding_window": 0},
    "full": {"layer_types": ["full_attention"] * 4, "sliding_window": WINDOW},
    "window": {"sliding_window": WINDOW},
    "zero": {"sliding_window": 0},
    "null": {"sliding_window": None},
}


def theirs(words: Mapping[str, Any], folder: Path) -> list[int | None] | None:
    """The window of each layer of transformers' model; None if its prompt and its decode step do not agree."""
    (folder / "config.json").write_text(json.dumps(words), "utf-8")
    torch.manual_seed(0)
    tokens = list(range(TOKENS))
    try:
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config).eval()
        whole = parity.logits_of(model, tokens)
        steps = family.stepwise(model, tokens, TOKENS - 1)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return None
    if np.abs(whole - steps).max() > ROUNDING:
        return None
    everywhere = config.sliding_window if config.model_type == "mistral" else None  # it has no attribute for this
    return [getattr(layer.self_attn, "sliding_window", everywhere) for layer in model.model.layers]


def ours(name: str, words: Mapping[str, Any]) -> tuple[list[int | None] | None, list[tuple[str, str]]]:
    """The windows that bringup reads, None after an error; and the keys and messages of the errors."""
    config, findings = by_name(name)[0].load("config").read(words)
    errors = [(f.parameter, f.message) for f in findings if f.severity is Severity.ERROR]
    return (None if errors else list(config.windows)), errors


CASES = [(kind, case, used) for kind in FAMILIES for case in WORDS for used in (None, False, True)]


@pytest.mark.parametrize(
    ("kind", "case", "used"),
    [(kind, case, used) for kind, case, used in CASES if used is None or kind in SWITCHED],
)
def test_windows_are_those_of_transformers(kind: str, case: str, used: bool | None, tmp_path: Path) -> None:
    """The same windows, or an error if transformers has none that its prompt and its decode steps agree on."""
    name, more = FAMILIES[kind]
    switch = {} if used is None else {"use_sliding_window": used, "max_window_layers": 0 if name == "qwen3_moe" else 2}
    words = SIZES | more | WORDS[case] | switch | {"model_type": kind}
    windows, errors = ours(name, words)
    if not (name == "qwen3_moe" and "layer_types" in words) and not (kind == "llama" and case in ("window", "zero")):
        assert windows == theirs(words, tmp_path), errors
        assert len(errors) < 2
    else:  # a key that transformers' forward ignores, and its cache does not
        assert windows is None


@pytest.mark.parametrize(
    ("name", "words", "key", "said"),
    [
        ("qwen2", {"use_sliding_window": False}, "use_sliding_window", "is False"),
        ("qwen2_moe", {}, "use_sliding_window", "is missing"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None}, "sliding_window", "is null"),
        ("gemma2", {"sliding_window": None}, "sliding_window", "is null"),
        ("llama", {}, "sliding_window", "is missing"),
    ],
)
def test_errors_name_the_key_that_disables_the_window(name: str, words: dict[str, Any], key: str, said: str) -> None:
    given = SIZES | SHARED | {"layer_types": TYPES} | words
    if name != "qwen2_moe":
        given = {word: value for word, value in given.items() if word not in SHARED}
    _, errors = ours(name, given)
    assert errors == [(key, f"`layer_types` lists sliding_attention, and `{key}` {said}")]


def test_windows_of_a_llama_are_ignored_only_on_request() -> None:
    """transformers' Llama computes full attention; its cache forgets the keys outside of a window nevertheless."""
    words = SIZES | WORDS["types"] | {"model_type": "llama"}
    _, (error,) = ours("llama", words)
    assert error[0] == "layer_types"
    read = by_name("llama")[0].load("config").read
    config, findings = read(words, {"layer_types": "of the converter", "sliding_window": "of the converter"})
    assert not findings
    assert config.windows == (None,) * 4
