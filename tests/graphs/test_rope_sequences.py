"""Rope that goes by the sequence's length, in whole models: prompts and decoding on both sides of the switch.

transformers' module keeps the base of an earlier, longer sequence: each sequence here gets a model of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.program.export_options import BUCKETS
from bringup.compile.runtime.session import Session, load
from tests.models import parity
from tests.models.family import WORST, turnwise

SWITCH = 270  # longer than the longest bucket: the first chunk of a long prompt ends below it
VOCAB, CONTEXT = 61, 340
ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {
        "max_position_embeddings": SWITCH,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0},
    },
    "longrope": {
        "max_position_embeddings": 2 * SWITCH,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "original_max_position_embeddings": SWITCH,
            "short_factor": [1.0, 1.1, 1.2, 1.5],
            "long_factor": [1.3, 1.9, 3.0, 7.0],
        },
    },
}
# What comes in at a time: prompts that end below, at and above the switch, in one chunk or more, and decoding.
TURNS = {
    "below": [200, *[1] * 4],
    "decoding-crosses": [SWITCH - 3, *[1] * 6],
    "at": [SWITCH, *[1] * 3],
    "above": [SWITCH + 1, *[1] * 3],
    "chunks": [330, *[1] * 3],
    "goes-on": [230, *[1] * 3, 60, *[1] * 3],
    "goes-on-above": [290, *[1] * 2, 30, *[1] * 2],
}


# Each kind compiled once for `torch`; for `cpu` the one that also scales, whose tables are chosen in the same way.
PAIRS = [
    ("dynamic", "torch"),
    *(pytest.param("longrope", target, marks=pytest.mark.slow) for target in ("torch", "cpu")),
]


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=20, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=1, **ROPES[request.param],
    )  # fmt: skip
    return parity.save_checkpoint(config, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def session(checkpoint: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    out = tmp_path_factory.mktemp("bundle") / "b"
    job = open_job(checkpoint=str(checkpoint))
    return load(build(job, out=out, target=request.param, max_seq_len=CONTEXT, all_logits=True))


def split(tokens: list[int], counts: list[int]) -> list[list[int]]:
    ends = np.cumsum(counts)
    return [tokens[end - count : end] for end, count in zip(ends.tolist(), counts, strict=True)]


def theirs(folder: Path, turns: list[list[int]]) -> np.ndarray:
    return turnwise(parity.load_reference(folder), turns)


def ours(session: Session, turns: list[list[int]]) -> np.ndarray:
    session.reset()
    return np.concatenate([session.prefill(t) if len(t) > 1 else session.decode(t[0])[None] for t in turns])


@pytest.mark.parametrize(("checkpoint", "session"), PAIRS, indirect=True, scope="module")
@pytest.mark.parametrize("name", TURNS)
def test_sequences_are_those_of_transformers(
    name: str, checkpoint: Path, session: Session, request: pytest.FixtureRequest
) -> None:
    turns = split(parity.random_tokens(sum(TURNS[name]), VOCAB, seed=3), TURNS[name])
    found = parity.distance(ours(session, turns), theirs(checkpoint, turns))
    assert found.worst <= WORST[request.node.callspec.params["session"]], str(found)
    assert found.wrong == 0


@pytest.mark.parametrize(
    "checkpoint", ["dynamic", pytest.param("longrope", marks=pytest.mark.slow)], indirect=True, scope="module"
)
def test_what_is_shown_would_be_seen(checkpoint: Path) -> None:
    """The same tokens with the frequencies of their own chunk, as if the first did not know of the second, are off."""
    assert max(BUCKETS) < SWITCH
    tokens = parity.random_tokens(330, VOCAB, seed=3)
    whole = theirs(checkpoint, [tokens])
    apart = theirs(checkpoint, [tokens[: max(BUCKETS)], tokens[max(BUCKETS) :]])
    assert parity.distance(apart, whole).worst > 100 * WORST["iree-cpu"]
