"""Rope that goes by a sequence's length: a verification past the switch compares like with like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from bringup.compile.verify.command import verify
from tests.models import parity

TRAINED = 30  # a prompt of 29 tokens, in a bucket of 32, ends before it
ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": TRAINED,
        "short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.3, 1.9, 3.0, 7.0],
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROPES)
def test_a_sequence_past_what_was_trained_is_no_fault(kind: str, tmp_path: Path) -> None:
    positions = TRAINED if kind == "dynamic" else 3 * TRAINED
    config = LlamaConfig(
        vocab_size=61, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=positions, rope_parameters=ROPES[kind],
    )  # fmt: skip
    found = verify("llama", str(parity.save_checkpoint(config, tmp_path)))
    assert [finding.code for finding in found.findings if finding.code != "BU709"] == []
    assert found.ok
    assert found.tokens > TRAINED
