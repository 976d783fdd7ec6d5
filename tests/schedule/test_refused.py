"""Graphs of users: what a schedule computes alike, and what it refuses instead of computing something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bringup.adapters.apply.materialise import materialise
from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, job_of
from bringup.compile.pipeline import build
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from bringup.graphs.core.module import State
from bringup.graphs.decoder import CausalLM
from bringup.graphs.llama import Llama
from tests.models import parity
from tests.schedule.models import CONTEXT, PREFILL, VOCAB, schedule_of
from tests.schedule.models import job_of as tiny


def swapped(x):
    """Halves exchanged by writing into a new tensor."""
    z = torch.zeros_like(x)
    half = x.shape[-1] // 2
    z[:, :half] = x[:, half:]
    z[:, half:] = x[:, :half]
    return z


def less_first_row(x):
    return torch.sigmoid(x) - torch.sigmoid(x)[:1]


def less_first_column(x):
    y = torch.sigmoid(x)
    return x * y[:, :1] + y


def of_bits(x):
    return x + x.view(torch.int32).to(torch.float32) * 1e-9


def fixed(x):
    return x * torch.tensor([2.0])


CASES: dict[str, tuple[Callable, bool]] = {
    "writes a part": (swapped, True),
    "reads another row": (less_first_row, True),
    "reads another column": (less_first_column, True),
    "reads bits": (of_bits, True),
    "a constant": (fixed, True),
}


def job_with(function: Callable, folder: Path) -> Job:
    """A tiny Llama that does something else to its last hidden state."""

    class Changed(Llama):
        def final(self, x):
            return function(super().final(x))

    job = tiny("llama", folder)
    return job_of(Changed(job.graph.config), materialise(job.plan, job.checkpoint))


@pytest.mark.parametrize("name", CASES)
def test_it_is_computed_or_refused(name: str, tmp_path: Path) -> None:
    function, computed = CASES[name]
    job, out = job_with(function, tmp_path), tmp_path / "b"
    settings = {"target": "schedule", "max_seq_len": CONTEXT, "buckets": (PREFILL,), "all_logits": True}
    if not computed:
        with pytest.raises(BringupError, match="BU403"):
            build(job, out=out, **settings)
        return
    tokens = parity.random_tokens(PREFILL, VOCAB)
    ours = load(build(job, out=out, **settings)).prefill(tokens)
    wanted = Eager(job, CONTEXT)(sequence_step(tokens, 0, PREFILL, CONTEXT)).numpy()
    assert np.abs(ours - wanted).max() <= 1e-5 * np.abs(wanted).max()
    names = [launch.group.name for launch in schedule_of(out).launches(f"prefill_{PREFILL}")]
    if name == "reads another row":  # which is another program's work
        assert sum("sigmoid" in each for each in names) == 2


class Sums(CausalLM):
    """A Llama whose first stage adds the embeddings of a sequence's tokens, by an operator of torch on a state."""

    def __init__(self, config, dtype="float32"):
        super().__init__(config, dtype)
        self.sums = State("sequence m", m=config.hidden)

    layer = Llama.layer

    def prologue(self, step):
        x_Nm, *shared = super().prologue(step)
        before_1m = step.previous(self.sums)
        sums_Nm = before_1m + x_Nm.cumsum(0)
        self.sums.index_copy_(0, step.rows, sums_Nm[step.starts[1:] - 1])
        return (sums_Nm, *shared)


@pytest.mark.parametrize("target", ["schedule", "torch", "cpu"])
def test_a_state_is_written_by_an_operator_of_torch(target: str, tmp_path: Path) -> None:
    base = tiny("llama", tmp_path)
    job = job_of(Sums(base.graph.config), materialise(base.plan, base.checkpoint))
    tokens = parity.random_tokens(PREFILL + 9, VOCAB)
    session = load(build(job, out=tmp_path / "b", target=target, max_seq_len=CONTEXT, buckets=(PREFILL,)))
    ours = [session.prefill(tokens[: PREFILL + 7]), *map(session.decode, tokens[PREFILL + 7 :])]
    eager = Eager(job, CONTEXT)
    wanted = eager(sequence_step(tokens, 0, len(tokens), CONTEXT)).numpy()[PREFILL + 6 :]
    assert np.abs(np.vstack(ours) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    session._engine.rewind(session._cached, 0)  # without the zeros of `reset`
    assert np.array_equal(session.prefill(tokens[: PREFILL + 7]), ours[0])  # zeros, not the sums of before


class InPlace(Llama):
    def epilogue(self, x_Rm):
        x_Rm += 1.0
        return super().epilogue(x_Rm)


def test_what_a_stage_is_given_does_not_change(tmp_path: Path) -> None:
    base = tiny("llama", tmp_path)
    job = job_of(InPlace(base.graph.config), materialise(base.plan, base.checkpoint))
    with pytest.raises(BringupError, match="BU304"):
        build(job, out=tmp_path / "b", target="torch", max_seq_len=CONTEXT, buckets=(PREFILL,))
