"""The words of published config.json files: each is read without an error, and only stated findings."""

from __future__ import annotations

from typing import Any

import pytest

from bringup.graphs.identity import check_identity
from bringup.graphs.registry import by_architecture, by_name
from tests.graphs.published import PUBLISHED, SOURCES

FILES = [(family, name) for family, files in PUBLISHED.items() for name in files]


def test_each_has_a_source() -> None:
    assert all(SOURCES[source] for _, source in FILES)


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
