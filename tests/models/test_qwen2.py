"""Qwen2 shapes: parity with transformers' forward, and every tensor and setting counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen2Config

from bringup.graphs.qwen2 import Qwen2Config as OurConfig
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, PreTrainedConfig] = {
    "odd-heads-tied": Qwen2Config(
        **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, num_key_value_heads=1,
        tie_word_embeddings=True,
    ),
    "windows-from-a-layer-on": Qwen2Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, use_sliding_window=True, sliding_window=9, max_window_layers=1,
    ),
    "yarn": Qwen2Config(
        **SIZES, hidden_size=60, intermediate_size=64, num_attention_heads=5, num_key_value_heads=5,
        rope_parameters=YARN,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory) -> Path:
    return parity.save_checkpoint(CASES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("target", ["torch", "cpu"])
def test_parity(checkpoint: Path, target: str, tmp_path: Path, record_property) -> None:
    record_property("parity", str(family.assert_parity(checkpoint, target, tmp_path / "bundle")))


def test_every_tensor_matters(checkpoint: Path) -> None:
    parity.assert_every_tensor_matters(checkpoint)


def test_no_key_is_overlooked() -> None:
    family.assert_no_key_is_overlooked(OurConfig, CASES["windows-from-a-layer-on"])


@pytest.mark.slow
def test_keys_walk(checkpoint: Path) -> None:
    print(family.assert_keys_walk(checkpoint))
