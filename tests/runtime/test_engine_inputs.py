"""Several sequences of a draft at a time: each one's hidden states stay with its own tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.opening import open_bundle
from bringup.compile.runtime.parts import Part
from bringup.compile.runtime.request import Request
from bringup.diagnostics import BringupError
from tests.models import drafts
from tests.models.parity import random_tokens
from tests.models.test_deepseek_mtp import opened, write

LENGTHS = 3, 11, 7  # tokens of the prompts; 2 more are decoded
CLOSE = 2e-4  # largest |difference| over largest |reference|, as tests/models


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> drafts.Draft:
    return write("dense-straight-queries-tied", tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def bundle(written: drafts.Draft, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "b"
    settings = {"target": "torch", "max_seq_len": 64, "buckets": (32,), "max_batch_size": 4}
    return build(opened(written.checkpoint), out=out, **settings)


def test_each_has_its_own_rows(written: drafts.Draft, bundle: Path) -> None:
    start = open_bundle(bundle, None)
    engine = Engine(start.manifest, start.executor, start.interface, share_blocks=True)
    _, config = drafts.read(written.checkpoint)
    equal = random_tokens(20, config["vocab_size"])  # of one text: only their hidden states tell sequences apart
    hidden = [np.random.default_rng(seed).standard_normal((20, config["hidden_size"]), np.float32) for seed in range(3)]
    sequences = [engine.open() for _ in LENGTHS]
    last: list[np.ndarray] = []
    for first, counts in ((0, LENGTHS), *((n, (1, 1, 1)) for n in range(2))):
        parts: list[Part] = []
        for cached, rows, length, count in zip(sequences, hidden, LENGTHS, counts, strict=True):
            assert cached
            begin = 0 if count == length else length + first
            assert engine.reserve(cached, count)
            given = {"hidden": rows[begin : begin + count].astype(np.float64)}
            parts.append(Part(cached, equal[begin : begin + count], begin + count, given))
        results = (engine.prefill if counts is LENGTHS else engine.decode)(parts)
        last = [found.logits[-1] for found in results]
        for cached, rows, found in zip(sequences, hidden, last, strict=True):
            count = len(cached.tokens)  # type: ignore[union-attr]
            wanted = drafts.logits(written.checkpoint, equal[:count], rows[:count])[-1]
            assert np.abs(found - wanted).max() <= CLOSE * np.abs(wanted).max()
    assert not engine.share_blocks


def test_a_batch_of_drafts_is_refused(bundle: Path) -> None:
    with pytest.raises(BringupError, match=r"BU029.*`hidden` besides tokens, which a batch does not support"):
        load_batch(bundle).add(Request([1, 2], max_new_tokens=1))
