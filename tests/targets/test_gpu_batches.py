"""A batch of four on the kernels: sequences that begin and end at different steps, with few blocks for their caches."""

from __future__ import annotations

from pathlib import Path

from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.schedule.models import VOCAB

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
