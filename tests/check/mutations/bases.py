"""The sound checkpoints that mutations begin with: small random models that transformers saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.check import faults
from tests.check.faults import GPT2, LLAMA, MIXTRAL, Draft, Family, read_draft, tiny


def _mistral() -> Any:
    """Of sizes that two ranks can share, except the three key heads."""
    from transformers import MistralConfig

    return MistralConfig(
        vocab_size=48,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=16,
        dtype="float16",
        tie_word_embeddings=True,
    )


MISTRAL = replace(LLAMA, name="mistral")
CONFIGS: dict[str, Callable[[], Any]] = {**faults.CONFIGS, "mistral": _mistral}
BASES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, MISTRAL, MIXTRAL)}


@cache
def _saved(name: str) -> Draft:
    with TemporaryDirectory() as folder:
        return read_draft(tiny(BASES[name], Path(folder), CONFIGS[name]()), BASES[name])


def base(name: str) -> Draft:
    """A fresh copy; the arrays are shared and are not to be written to."""
    return _saved(name).copy()
