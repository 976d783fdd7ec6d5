"""Rope settings that are refused, type by type: each by its code and its key, once."""

from __future__ import annotations

from typing import Any

import pytest

from bringup.diagnostics import BringupError
from tests.graphs.angles import read_rope
from tests.graphs.rope_types import LONGROPE, SHORT, STATED, TYPES, YARN, D

WITHOUT = {
    "linear": ["factor"],
    "dynamic": ["factor"],
    "llama3": ["factor", "low_freq_factor", "high_freq_factor"],
    "longrope": ["short_factor", "long_factor"],
}
NONSENSE: list[tuple[str, str, Any]] = [
    ("default", "rope_theta", "many"),
    ("default", "rope_theta", 0.0),
    ("default", "rope_theta", -1e4),
    ("linear", "factor", 0.0),
    ("linear", "factor", -2.0),
    ("linear", "factor", [2.0]),
    ("linear", "factor", 1e200),
    ("yarn", "rope_theta", 1.0),
    ("dynamic", "factor", float("nan")),
    ("dynamic", "factor", 0),
    ("llama3", "high_freq_factor", 0.9),  # below low_freq_factor
    ("llama3", "low_freq_factor", "low"),
    ("llama3", "original_max_position_embeddings", 0),
    ("yarn", "factor", 0.0),
    ("yarn", "beta_fast", -1.0),
    ("yarn", "beta_slow", "slow"),
    ("yarn", "truncate", 1),
    ("yarn", "mscale", "big"),
    ("yarn", "mscale_all_dim", True),
    ("yarn", "attention_factor", 0.0),
    ("yarn", "original_max_position_embeddings", 2.5),
    ("longrope", "short_factor", SHORT[:-1]),
    ("longrope", "long_factor", [*SHORT, 1.0]),
    ("longrope", "long_factor", [0.0] * 8),
    ("longrope", "short_factor", 2.0),
    ("longrope", "attention_factor", -1.0),
]
FOREIGN = [("default", "factor"), ("linear", "beta_fast"), ("dynamic", "short_factor"), ("llama3", "truncate")]
FOREIGN += [("yarn", "long_factor"), ("longrope", "beta_slow")]


def refused(words: dict[str, Any], head_dim: int = D, **settings: Any) -> list[tuple[str, str]]:
    with pytest.raises(BringupError) as caught:
        read_rope({"max_position_embeddings": STATED, "rope_parameters": words}, head_dim, **settings)
    return [(finding.code, finding.parameter) for finding in caught.value.findings]


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in WITHOUT.items() for key in keys])
def test_a_setting_that_a_type_cannot_do_without(kind: str, key: str) -> None:
    assert refused({name: value for name, value in TYPES[kind].items() if name != key}) == [("BU121", key)]


@pytest.mark.parametrize(("kind", "key", "value"), NONSENSE)
def test_a_value_that_makes_no_sense(kind: str, key: str, value: Any) -> None:
    assert refused(TYPES[kind] | {key: value}) == [("BU121", key)]


@pytest.mark.parametrize(("kind", "key"), FOREIGN)
def test_a_setting_of_another_type(kind: str, key: str) -> None:
    values = YARN | LONGROPE | {"beta_fast": 9.0, "beta_slow": 2.0, "truncate": True}
    assert refused(TYPES[kind] | {key: values[key]}) == [("BU120", key)]


@pytest.mark.parametrize("kind", ["spiral", "mrope", ""])
def test_a_type_that_there_is_not(kind: str) -> None:
    assert refused({"rope_type": kind, "factor": 2.0, "unheard_of": 1}) == [("BU122", "rope_type")]


@pytest.mark.parametrize(("share", "head_dim"), [(0.0, D), (1.5, D), (-0.5, D)])
def test_a_share_that_is_none(share: float, head_dim: int) -> None:
    words = TYPES["default"] | {"partial_rotary_factor": share}
    assert refused(words, head_dim, partial=1.0) == [("BU121", "partial_rotary_factor")]


@pytest.mark.parametrize(("share", "head_dim"), [(1.0, 15), (1.0, 9), (0.05, D)])
def test_channels_that_make_no_pairs(share: float, head_dim: int) -> None:
    words = TYPES["default"] | {"partial_rotary_factor": share}
    assert refused(words, head_dim, partial=1.0) == [("BU121", "head_dim")]


def test_one_pair_cannot_stretch() -> None:
    """The exponent d / (d - 2) has no value."""
    assert refused(TYPES["dynamic"], head_dim=2) == [("BU121", "head_dim")]


def test_longrope_counts_the_channels_that_turn() -> None:
    half = LONGROPE | {"short_factor": SHORT[:4], "long_factor": SHORT[:4], "partial_rotary_factor": 0.5}
    assert read_rope({"max_position_embeddings": STATED, "rope_parameters": half}, D, partial=1.0).channels(D) == 8
    whole = half | {"partial_rotary_factor": 1.0}
    assert refused(whole, partial=1.0) == [("BU121", "short_factor"), ("BU121", "long_factor")]
