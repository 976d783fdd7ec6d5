"""Published config.json files, word for word: each is read without an error, and only stated findings.

`published_words.json` has, for each family, files by their names on the Hugging Face hub. They were written down from
knowledge of the files, without a copy at hand: words and values are the test's, not a proof of what is published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bringup.graphs.identity import check_identity
from bringup.graphs.registry import by_architecture, by_name

PUBLISHED: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("published_words.json").read_text("utf-8")
)
FILES = [(family, name) for family, files in PUBLISHED.items() for name in files]


@pytest.mark.parametrize(("name", "source"), FILES)
def test_a_published_config_is_read_in_silence(name: str, source: str) -> None:
    raw = PUBLISHED[name][source]
    family, _, _ = by_name(name)
    assert by_architecture(raw["architectures"]) is family
    check_identity(family, raw, named=True)
    assert family.load("config").read(raw)[1] == []


@pytest.mark.parametrize(
    ("name", "source", "word", "value"),
    [
        ("qwen2", "Qwen/Qwen2.5-7B", "use_mrope", True),
        ("llama", "HuggingFaceTB/SmolLM2-135M", "rope_interleaved", True),
        ("gpt2", "openai-community/gpt2-medium", "n_special", 3),
    ],
)
def test_values_that_may_change_a_number_are_refused(name: str, source: str, word: str, value: Any) -> None:
    _, findings = by_name(name)[0].load("config").read(PUBLISHED[name][source] | {word: value})
    assert [(finding.code, finding.parameter) for finding in findings] == [("BU122", word)]


@pytest.mark.parametrize(
    ("source", "longest"),
    [("huggyllama/llama-7b", 2048), ("lmsys/vicuna-7b-v1.5-16k", 16384), ("meta-llama/Llama-2-7b-hf", 4096)],
)
def test_the_context_that_a_config_states(source: str, longest: int) -> None:
    """`max_sequence_length` is after linear rope stretched the positions."""
    config, _ = by_name("llama")[0].load("config").read(PUBLISHED["llama"][source])
    assert config.max_positions == longest
