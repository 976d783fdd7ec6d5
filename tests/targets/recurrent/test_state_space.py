"""A model of state spaces in bundles: a prompt in chunks, decode and batches, against the model by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from tests.models import parity
from tests.schedule.test_families import BATCH, PROMPT, STEPS, four
from tests.targets.recurrent import state_spaces

NEAR = 1e-5  # largest |difference| over largest |logit|; 1.3e-6 by torch
CHUNKED = 2 * PROMPT + 11  # tokens of a prompt of three chunks, the last of them padded
EXECUTORS = {"torch": (None,), "cpu": (None, "reference"), "iree-cpu": (None,)}


@pytest.mark.slow
@pytest.mark.parametrize("target", EXECUTORS)
def test_logits(target: str, tmp_path: Path) -> None:
    """A prompt in chunks, then decode; then four sequences at once, in a packed prefill and in decode."""
    settings = {"max_seq_len": state_spaces.CONTEXT, "max_batch_size": BATCH, "buckets": (PROMPT,), "all_logits": True}
    bundle = build(state_spaces.job(), out=tmp_path / "b", target=target, **settings)
    tokens = parity.random_tokens(CHUNKED + STEPS, state_spaces.VOCAB)
    wanted = state_spaces.by_hand(tokens)
    for executor in EXECUTORS[target]:
        session = load(bundle, executor)
        far = np.abs(parity.run(session, tokens, CHUNKED) - wanted).max() / np.abs(wanted).max()
        assert far <= NEAR
        assert four(session, tokens, wanted) <= NEAR
