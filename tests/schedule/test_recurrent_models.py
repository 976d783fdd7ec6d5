"""A model with recurrent layers, by the CPU's kernels and by the reference executor, against the graph by torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session, load
from tests.models import parity
from tests.runtime import recurrent
from tests.schedule.test_families import BATCH, CONTEXT, PROMPT, STEPS, eager, four

NEAR = 1e-4  # largest |difference| over largest |logit|: other chunks alone give 1e-5 here, their sums 2e-5
CHUNKED = 2 * PROMPT + 11  # tokens of a prompt of three chunks, the last of them padded
EXECUTORS = [None, "reference"]


def opened(dtype: str, executor: str | None, out: Path) -> Session:
    settings = {"max_seq_len": CONTEXT, "max_batch_size": BATCH, "buckets": (PROMPT,), "all_logits": True}
    return load(build(recurrent.job(dtype), out=out, target="cpu", **settings), executor)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_logits(executor: str | None, tmp_path: Path) -> None:
    """A prompt in chunks, then decode; then four sequences at once, in a packed prefill and in decode."""
    one, tokens = opened("float32", executor, tmp_path / "b"), parity.random_tokens(CHUNKED + STEPS, recurrent.VOCAB)
    wanted = eager(recurrent.job(), tokens, {})
    ours = parity.run(one, tokens, CHUNKED)
    assert np.abs(ours - wanted).max() <= NEAR * np.abs(wanted).max()
    assert four(one, tokens, wanted) <= NEAR


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_of_16_bits(dtype: str, executor: str | None, tmp_path: Path) -> None:
    """No further from those of float32 than torch's."""
    one, tokens = opened(dtype, executor, tmp_path / "b"), parity.random_tokens(CHUNKED + STEPS, recurrent.VOCAB)
    exact, wanted = (eager(recurrent.job(each), tokens, {}) for each in ("float32", dtype))
    ours = parity.run(one, tokens, CHUNKED)
    assert (ours - exact).std() <= parity.NO_WORSE * (wanted - exact).std()
