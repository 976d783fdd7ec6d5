"""A batch of four on the kernels: sequences that begin and end at different steps, with few blocks for their caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.schedule.models import CONTEXT, PREFILL, VOCAB, job_of

# A block has 64 tokens, and the caches have four blocks: each request needs a second one before it ends.
LENGTHS = ((60, 9, 0.0), (62, 5, 0.8), (58, 12, 1.0), (63, 7, 0.0), (40, 28, 0.7))  # prompt, new tokens, temperature
REQUESTS = tuple(
    Request([(7 * at + length) % VOCAB for at in range(length)], max_new_tokens=new, temperature=heat, seed=new)
    for length, new, heat in LENGTHS
)


def answers_of(batch: Batch) -> tuple[list[list[int]], list[int]]:
    """The tokens of each request; the order in which they ended. The last request comes when another one has ended."""
    found = {batch.add(each): [] for each in REQUESTS[:-1]}
    ended: list[int] = []
    while batch:
        for event in batch.step():
            found[event.id].append(event.token)
            ended += [event.id] if event.reason else []
        if ended and len(found) < len(REQUESTS):
            found[batch.add(REQUESTS[-1])] = []
    return list(found.values()), ended


@pytest.mark.slow
def test_tokens_are_those_of_single_runs(batch_bundle: Path) -> None:
    """Of the launches by torch, one request after the other. Blocks run out, so that requests begin again."""
    alone, wanted = load(batch_bundle, "reference"), list[list[int]]()
    for each in REQUESTS:
        alone.reset()
        settings = {"temperature": each.temperature, "top_p": each.top_p, "seed": each.seed}
        wanted.append(list(alone.generate(list(each.tokens), max_new_tokens=each.max_new_tokens, **settings)))
    batch = load_batch(batch_bundle, "emulate")
    found, ended = answers_of(batch)
    assert found == wanted
    assert [len(tokens) for tokens in found] == [each.max_new_tokens for each in REQUESTS]
    assert ended != sorted(ended)
    assert batch.preemptions


@pytest.mark.slow
def test_tokens_with_a_draft_are_those_without(tmp_path: Path) -> None:
    """The kernels of a step that checks the tokens of several sequences; the draft is the model itself."""
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 2, "draft_tokens": 2}
    bundle = build(job_of("gpt2", tmp_path), out=tmp_path / "b", target="cuda:sm_80", **settings)
    given = [Request(list(request.tokens), max_new_tokens=6) for request in REQUESTS[:3]]

    def run(batch: Batch) -> list[list[int]]:
        found = {batch.add(each): [] for each in given}
        while batch:
            for event in batch.step():
                found[event.id].append(event.token)
        return list(found.values())

    with load_batch(bundle, "emulate") as plain, load_batch(bundle, "emulate", draft=bundle, draft_tokens=2) as batch:
        assert batch.drafts
        assert run(batch) == run(plain)
        assert batch.drafts.stats.acceptance_rate == 1.0
        assert batch.drafts.stats.tokens_per_step > 2
