"""cos and sin of every rope type against transformers' own modules and frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from bringup.diagnostics import BringupError
from bringup.graphs.config.rope import KINDS
from tests.graphs.angles import read_rope, rows
from tests.graphs.rope_types import LONGROPE, STATED, TYPES, D

NEAR = 2e-5  # float32 rounding of an angle of up to 200 radians


def theirs(words: dict[str, Any], first: int, count: int, total: int, **more: Any) -> np.ndarray:
    """A new module's, so that no longer sequence came before."""
    config = LlamaConfig(
        hidden_size=4 * D, num_attention_heads=4, max_position_embeddings=STATED, rope_parameters=dict(words), **more
    )
    module = LlamaRotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.arange(total)[None])
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=1)[first : first + count].numpy()


def test_every_type_is_among_these() -> None:
    assert {words["rope_type"] for words in TYPES.values()} == set(KINDS)
    assert set(KINDS) == set(ROPE_INIT_FUNCTIONS) | {"default"}


@pytest.mark.parametrize("total", [5, 23, 24, 25, 95, 96, 97, 200])
@pytest.mark.parametrize("name", TYPES)
def test_cos_and_sin_are_those_of_transformers(name: str, total: int) -> None:
    """Below, at and above the lengths where `dynamic` and `longrope` change."""
    rope = read_rope({"max_position_embeddings": STATED, "rope_parameters": TYPES[name]}, D)
    assert np.abs(rows(rope, D, 0, total, total) - theirs(TYPES[name], 0, total, total)).max() < NEAR


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_chunk_turns_by_its_whole_sequence(name: str) -> None:
    rope = read_rope({"max_position_embeddings": STATED, "rope_parameters": TYPES[name]}, D)
    ours = rows(rope, D, 2, 20, 150)
    assert np.abs(ours - theirs(TYPES[name], 2, 20, 150)).max() < NEAR
    assert np.abs(ours - theirs(TYPES[name], 2, 20, 22)).max() > 0.05


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", [name for name, words in TYPES.items() if words["rope_type"] != "longrope"])
def test_a_part_of_the_channels(name: str, share: float) -> None:
    """`default` has no entry in transformers' table: its families compute it, over the channels that turn."""
    raw = {"max_position_embeddings": STATED, "rope_parameters": TYPES[name] | {"partial_rotary_factor": share}}
    rope = read_rope(raw, D, partial=1.0)
    d = rope.channels(D)
    assert d == (D if rope.kind == "proportional" else int(D * share))
    if name == "default":
        frequencies, scale = 5e5 ** -(np.arange(0, d, 2) / d), 1.0
    else:
        config = LlamaConfig(head_dim=D, max_position_embeddings=STATED, rope_parameters=raw["rope_parameters"])
        inv_freq, scale = ROPE_INIT_FUNCTIONS[rope.kind](config)
        frequencies = inv_freq.numpy()
    angles = np.arange(20)[:, None] * frequencies
    wanted = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale
    assert np.abs(rows(rope, D, 0, 20, 20) - wanted).max() < NEAR


def test_the_part_is_also_read_next_to_ropes_settings() -> None:
    raw = {"max_position_embeddings": STATED, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert read_rope(raw, D, partial=1.0).channels(D) == 8
    assert read_rope({"max_position_embeddings": STATED}, D, partial=0.25).channels(D) == 4
    with pytest.raises(BringupError, match=r"BU120.*partial_rotary_factor"):
        read_rope(raw, D)  # of a family that does not know it


@pytest.mark.parametrize("name", ["yarn-not-truncated", "longrope", "llama3"])
@pytest.mark.parametrize("within", [24, None])
def test_the_trained_length_may_be_next_to_ropes_settings(name: str, within: int | None) -> None:
    """There it counts more than within them, as in transformers' `standardize_rope_params`."""
    words = TYPES[name] | {"original_max_position_embeddings": within}
    words = {key: value for key, value in words.items() if value is not None}
    raw = {"max_position_embeddings": STATED, "original_max_position_embeddings": 48, "rope_parameters": words}
    ours = rows(read_rope(raw, D), D, 0, 40, 40)
    assert np.abs(ours - theirs(words, 0, 40, 40, original_max_position_embeddings=48)).max() < NEAR


@pytest.mark.parametrize("name", ["yarn", "longrope", "llama3"])
def test_what_was_trained_may_be_absent(name: str) -> None:
    words = {key: value for key, value in TYPES[name].items() if key != "original_max_position_embeddings"}
    ours = rows(read_rope({"max_position_embeddings": STATED, "rope_parameters": words}, D), D, 0, 120, 120)
    assert np.abs(ours - theirs(words, 0, 120, 120)).max() < NEAR


def test_the_older_spelling() -> None:
    """`rope_scaling` with `type`, and theta beside it; before `rope_parameters`, as in transformers."""
    older = {"type": "linear", "factor": 3.0}
    raw = {"max_position_embeddings": STATED, "rope_theta": 777.0, "rope_scaling": older}
    wanted = theirs({"rope_type": "linear", "rope_theta": 777.0, "factor": 3.0}, 0, 30, 30)
    for words in (raw, raw | {"rope_parameters": LONGROPE}):
        assert np.abs(rows(read_rope(words, D), D, 0, 30, 30) - wanted).max() < NEAR
