"""Tiny models, every launch of prefill and decode by its kernel on the emulator, against the reference executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.program.program import Entry
from bringup.compile.program.step_inputs import Chunk, make_step
from bringup.compile.program.torch_arrays import to_numpy
from bringup.compile.runtime.session import load
from tests.kernels.steps import Kernels
from tests.schedule.models import PREFILL, VOCAB, job_of, scheduled

NEAR = 1e-5
BATCH = 4


# Every family on one architecture, one on both. In `make test` tests/targets/test_gpu.py has GPT-2 in the emulator.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "capability"), [("gpt2", "sm_90"), ("llama", "sm_90"), ("llama", "sm_80"), ("gpt_oss", "sm_90")]
)
def test_logits(name: str, capability: str, tmp_path: Path) -> None:
    """One sequence, then four of different lengths with padding, whose blocks are in any order."""
    bundle = scheduled(job_of(name, tmp_path), tmp_path / "b", max_batch_size=BATCH)
    session = load(bundle)
    weights = {spec.name: to_numpy(session.executor._weights[spec.name]) for spec in session.interface.weights}
    kernels = Kernels(bundle, weights, capability)
    random = np.random.default_rng(5)
    free = random.permutation(session.interface.num_blocks - 1).tolist()
    blocks = [[free.pop(), free.pop()] for _ in range(BATCH)]
    lengths = [13, 3, 9, 5]
    for entry_name in (f"prefill_{PREFILL}", "decode", f"prefill_{PREFILL}_{BATCH}", f"decode_{BATCH}"):
        entry = session.interface.entry(entry_name)
        chunks = [_chunk(entry, row, blocks, lengths, random) for row in range(entry.num_sequences)]
        step = make_step(chunks, entry, session.interface)
        wanted, found = session.executor.step(entry_name, step)["logits"], kernels.step(entry_name, step)["logits"]
        assert float(np.abs(found - wanted).max() / np.abs(wanted).max()) < NEAR, entry_name


def _chunk(entry: Entry, row: int, blocks: list[list[int]], lengths: list[int], random: np.random.Generator) -> Chunk:
    count, start = (1, lengths[row]) if entry.decode else (lengths[row], 0)
    return Chunk(random.integers(0, VOCAB, count).tolist(), start, blocks[row], row, start + count)
