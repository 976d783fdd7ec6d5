"""Kernels of recurrent layers in bundles: the tokens of torch, alone and in batches; no finding of the trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.kernel_trial import trial_of
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.schedule.models import CONTEXT, PREFILL, VOCAB, greedy
from tests.targets.recurrent.mixed import GROUPS, HEADS, KEYS

FILE = Path(__file__).with_name("mixed.py")
CONFIG = {
    **{"model_type": "llama", "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "num_hidden_layers": 4},
    **{"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2},
    "rms_norm_eps": 1e-5,
}
# Longer than a prefill, shorter, and shorter than the taps of a convolution.
PROMPTS = [[(11 * at + size) % VOCAB for at in range(size)] for size in (40, 9, 2, 1, 13)]
LONG = 80  # tokens of a prefill in chunks
LONG_PROMPT = [(7 * at + 13) % VOCAB for at in range(110)]
NEW = 4
NEAR = {"float32": 1e-4, "bfloat16": 5e-2}
SETTINGS: dict[str, Any] = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4, "draft_tokens": 2}


def mixed(dtype: str) -> Job:
    return open_job(FILE, "dummy", config=CONFIG, dtype=dtype)


def batched(bundle: Path, executor: str, draft: Path | None = None, count: int = len(PROMPTS)) -> list[list[int]]:
    """Tokens of the first prompts in batches of up to four: of all, sequences end and others begin in their rows."""
    batch = load_batch(bundle, executor, draft=draft, draft_tokens=draft and 2)
    found = {batch.add(Request(prompt, max_new_tokens=NEW + at)): [] for at, prompt in enumerate(PROMPTS[:count])}
    while batch:
        for event in batch.step():
            found[event.id].append(event.token)
    return list(found.values())


@pytest.mark.slow
def test_tokens_are_those_of_torch(tmp_path: Path) -> None:
    job = mixed("float32")
    session = load(build(job, out=tmp_path / "t", target="torch", max_seq_len=CONTEXT, buckets=(PREFILL,)))
    torch = greedy(session, PROMPTS, NEW + len(PROMPTS))
    wanted = [tokens[: NEW + at] for at, tokens in enumerate(torch)]
    bundle = build(job, out=tmp_path / "b", target="cuda:sm_90", **SETTINGS)
    assert len({tuple(tokens) for tokens in wanted}) == len(PROMPTS)
    assert greedy(load(bundle, "emulate"), PROMPTS[1:2], NEW) == [wanted[1][:NEW]]
    assert batched(bundle, "reference") == wanted
    assert batched(bundle, "emulate") == wanted
    assert batched(bundle, "emulate", bundle, 2) == wanted[:2]  # as its own draft, which is recurrent too


@pytest.mark.slow
def test_a_sequence_that_goes_on_after_its_tokens(tmp_path: Path) -> None:
    """No step was started ahead: it would have changed the states."""
    job, settings = mixed("float32"), {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    theirs = load(build(job, out=tmp_path / "t", target="torch", **settings))
    ours = load(build(job, out=tmp_path / "b", target="cuda:sm_90", **settings), "emulate")
    assert isinstance(ours.executor, GpuExecutor)
    new = [list(session.generate(PROMPTS[1], max_new_tokens=NEW)) for session in (ours, theirs)]
    assert new[0] == new[1]
    for token in (new[0][-1], 9, 2):
        found, expected = (session.decode(token) for session in (ours, theirs))
        assert np.abs(found - expected).max() <= NEAR["float32"] * np.abs(expected).max()


@pytest.mark.slow
def test_kernels_are_clean(tmp_path: Path) -> None:
    """Ragged prefill and decode of four sequences, with padding."""
    bundle = build(mixed("bfloat16"), out=tmp_path / "b", target="cuda:sm_90", **SETTINGS)
    rows = trial_of(bundle)
    stems = {stem for row in rows for stem in row.kernels.split()}
    convolutions = {f"recurrent.causal_conv{suffix}" for suffix in ("", "_state", "_step")}
    assert stems >= {*convolutions, "recurrent.linear_attention"}
    assert [finding for row in rows for finding in row.seen.findings] == []
    assert max(row.error for row in rows) < NEAR["bfloat16"]


@pytest.mark.slow
def test_a_prompt_in_chunks(tmp_path: Path) -> None:
    """A prompt of two prefills, the second with the state of the first: tokens of torch, and bytes of the schedule."""
    job, settings = mixed("bfloat16"), {"max_seq_len": CONTEXT, "buckets": (LONG,)}
    theirs = load(build(job, out=tmp_path / "t", target="torch", **settings))
    bundle = build(job, out=tmp_path / "b", target="cuda:sm_90", **settings)
    assert greedy(load(bundle, "emulate"), [LONG_PROMPT], NEW) == greedy(theirs, [LONG_PROMPT], NEW)
    rows = [row for row in trial_of(bundle, entries=[f"prefill_{LONG}"]) if "chunk_states" in row.kernels]
    kernels = [f"recurrent.{first}_chunks recurrent.chunk_states" for first in ("delta", "state_space")]
    assert [row.kernels for row in rows] == kernels
    for row, groups in zip(rows, (HEADS[0], GROUPS), strict=True):
        assert row.seen.findings == []
        assert row.error < NEAR["bfloat16"]
        assert row.seen.written == row.cost.written
        # Both kernels read q and k, neither reads tokens, positions and slots. The prompt begins, so no state is read.
        again, unread = 2 * 2 * LONG * groups * KEYS, 3 * 8 * LONG
        assert row.seen.read == pytest.approx(row.cost.other + again - unread, rel=0.01)


@pytest.mark.slow
def test_it_compiles_for_amd(tmp_path: Path) -> None:
    bundle = build(mixed("bfloat16"), out=tmp_path / "b", target="rocm:gfx942", **SETTINGS)
    assert list((bundle / "hsaco").iterdir())
