"""A batch of four on the kernels: sequences that begin and end at different steps, with few blocks for their caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.schedule.models import CONTEXT, PREFILL, VOCAB, job_of

# A block has 64 tokens, and the caches four: each request here needs a second block before it ends.
BLOCKS = 4
LENGTHS = ((60, 9, 0.0), (62, 5, 0.8), (58, 12, 1.0), (63, 7, 0.0), (40, 28, 0.7))  # prompt, new tokens, temperature
REQUESTS = tuple(
    Request([(7 * at + length) % VOCAB for at in range(length)], max_new_tokens=new, temperature=heat, seed=new)
    for length, new, heat in LENGTHS
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batches")
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4, "cache_blocks": BLOCKS}
    return build(job_of("gpt2", folder), out=folder / "b", target="cuda:sm_90", **settings)


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


def test_tokens_are_those_of_single_runs(bundle: Path) -> None:
    """Of the launches by torch, one request after the other. Blocks run out, so that requests begin again."""
    alone, wanted = load(bundle, "reference"), list[list[int]]()
    for each in REQUESTS:
        alone.reset()
        settings = {"temperature": each.temperature, "top_p": each.top_p, "seed": each.seed}
        wanted.append(list(alone.generate(list(each.tokens), max_new_tokens=each.max_new_tokens, **settings)))
    batch = load_batch(bundle, "emulate")
    found, ended = answers_of(batch)
    assert found == wanted
    assert [len(tokens) for tokens in found] == [each.max_new_tokens for each in REQUESTS]
    assert ended != sorted(ended)
    assert batch.preemptions
