"""A batch with a draft: each request gets the tokens of its own run without one, whatever the draft proposes.

The expected tokens are those of `exact.expected`, which has neither cache, steps, batch nor draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.drafts import Drafts
from bringup.compile.runtime.request import Request
from tests.runtime.exact import Exact, collect, expected, finish, new_opened
from tests.runtime.test_scheduler import SYSTEM, requests, run_in_any_order, run_joining, used

K = 4
SIZES = (8, 32, 128)
ROPES: dict[str, dict[str, Any]] = {"fixed": {}, "longrope": {"recompute": (70, 73)}, "dynamic": {"varies": 75}}


class Erring(Exact):
    """A draft whose logits are wrong at every position for which `errs` is true."""

    def errs(self, position: int) -> bool:
        return False

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = super().step(entry, step)
        for row, end in enumerate(step["starts"][1:]):
            position = int(step["positions"][end - 1])
            results["logits"][row] = np.roll(results["logits"][row], int(self.errs(position)))
        return results


def drafted(
    main: Mapping[str, Any] | None = None, draft: Mapping[str, Any] | None = None, most: int = K, period: int = 0
) -> Batch:
    """A batch with a draft, which is wrong at every `period`th position."""
    main, draft = ({"proposals": most, **(given or {})} for given in (main, draft or main))
    first = new_opened(**{"sizes": SIZES, **main}, all_logits=True)
    second = new_opened(**{"sizes": SIZES, **draft})
    second.executor = Erring(second.interface, second.executor.seen)
    second.executor.errs = lambda position: period > 0 and position % period == 0
    return Batch(first, None, Drafts(first, second, most))


def used_by_draft(batch: Batch) -> int:
    assert batch.drafts
    return batch.drafts.engine.pool.count - batch.drafts.engine.pool.num_free


def idle(batch: Batch) -> bool:
    """Whether no block and no row of either model is in use."""
    assert batch.drafts
    engines = batch._engine, batch.drafts.engine
    rows = all(sorted(each._rows) == list(range(each.interface.max_batch_size)) for each in engines)
    return rows and used(batch) == used_by_draft(batch) == 0


def greedy(count: int, seed: int = 0) -> list[Request]:
    found = requests(count, seed)
    return [Request(each.tokens, max_new_tokens=each.max_new_tokens + 5, seed=each.seed) for each in found]


@pytest.mark.parametrize("kind", ["paged", "sequence"])
@pytest.mark.parametrize("period", range(6))
def test_those_that_join_later_get_the_tokens_of_their_own_runs(period: int, kind: str) -> None:
    """With all, none and other numbers of accepted proposals in a step."""
    batch = drafted({"kind": kind}, period=period)
    tokens = run_joining(batch, greedy(12))
    assert idle(batch)
    assert batch.drafts
    stats = batch.drafts.stats
    assert stats.tokens == sum(len(each) - 1 for each in tokens.values())
    assert stats.accepted <= stats.proposed
    rate = {0: 1.0, 1: 0.0}.get(period, stats.acceptance_rate)
    assert stats.acceptance_rate == rate
    assert stats.tokens_per_step > 1.5 or period == 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_order_of_adding_stepping_and_removing(data: st.DataObject) -> None:
    """With so few blocks, rows and tokens of context that the draft cannot follow some requests, and others are
    preempted."""
    draw = data.draw
    sequences, rope = draw(st.integers(1, 5)), ROPES[draw(st.sampled_from(list(ROPES)))]
    kinds = st.sampled_from(["paged", "sequence"])
    main = {"sequences": sequences, "blocks": draw(st.integers(4, 12)), "kind": draw(kinds), **rope}
    draft = {
        "sequences": draw(st.integers(1, 5)), "blocks": draw(st.integers(1, 12)),
        "context": draw(st.sampled_from([8, 70, 256])), "sizes": draw(st.sampled_from([(16,), (8, 128)])),
        **ROPES[draw(st.sampled_from(list(ROPES)))], "kind": draw(kinds),
    }  # fmt: skip
    batch = drafted(main, draft, draw(st.integers(1, 5)), draw(st.integers(0, 6)))
    run_in_any_order(batch, greedy(draw(st.integers(1, 9)), draw(st.integers(0, 99))), data, **rope)
    assert idle(batch)


def test_a_rope_that_changes_after_accepted_tokens() -> None:
    """Those that recurrent states do not contain yet are processed with the rope of before."""
    main = {"kind": "sequence", "varies": 75}
    batch, given = drafted(main), [Request([index] * (60 + index), max_new_tokens=20) for index in range(12)]
    for request in given:
        batch.add(request)
    assert finish(batch) == {index: expected(request, varies=75) for index, request in enumerate(given)}


def test_the_steps_of_both_models() -> None:
    """The draft processes both prompts in one prefill, and decodes for both; the main model checks both at once."""
    batch = drafted({"sizes": (16, 32)})
    for count in (10, 4):
        batch.add(Request([1] * count, max_new_tokens=11))
    finish(batch)
    assert batch.drafts
    assert batch._engine.executor.steps == [("prefill_16_4", 2, count) for count in (14, 10, 10)]  # type: ignore[attr-defined]
    steps = [("prefill_16_4", 2, 12), *[("decode_2", 2, 2)] * 10]  # the first two tokens, then 3 proposals; twice
    assert batch.drafts.engine.executor.steps == steps  # type: ignore[attr-defined]
    assert batch.drafts.stats.to_json() == {
        "steps": 4, "proposed": 16, "accepted": 16, "tokens": 20, "acceptance_rate": 1.0, "tokens_per_step": 5.0,
    }  # fmt: skip


def test_a_long_prompt_does_not_keep_others_from_decoding() -> None:
    """The draft processes it in parts, one before each step."""
    batch, tokens = drafted({"sizes": (32,), "sequences": 2}), {}
    given = [Request([1, 2], max_new_tokens=40), Request([2] * 200, max_new_tokens=20)]
    batch.add(given[0])
    collect(batch, tokens)
    batch.add(given[1])
    assert batch.drafts
    steps = batch.drafts.engine.executor.steps  # type: ignore[attr-defined]
    while batch:
        before = len(steps)
        collect(batch, tokens)
        assert sum("prefill" in name for name, _, _ in steps[before:]) <= 1
    assert tokens == {index: expected(request) for index, request in enumerate(given)}
    assert batch.drafts.stats.acceptance_rate == 1.0
    assert batch.drafts.stats.tokens_per_step > 3


def test_both_models_share_prefixes() -> None:
    batch = drafted()
    given = [Request([*SYSTEM, *range(index, index + 9)], max_new_tokens=9) for index in range(4)]
    for request in given:
        batch.add(request)
        finish(batch)
    assert batch.drafts
    assert batch.shared_tokens == 3 * 128
    prefilled = sum(n for name, _, n in batch.drafts.engine.executor.steps if "prefill" in name)  # type: ignore[attr-defined]
    assert prefilled == len(SYSTEM) + 8 + 3 * (len(SYSTEM) + 8 - 128)


def test_rejected_tokens_are_never_shared() -> None:
    """A block that proposals fill is published only with the tokens that were accepted."""
    batch = drafted(period=2)
    first = Request(SYSTEM[:120], max_new_tokens=40)
    batch.add(first)
    (tokens,) = finish(batch).values()
    assert tokens == expected(first)
    assert batch.drafts
    for engine in batch._engine, batch.drafts.engine:
        assert len(engine.pool._digests) == (120 + 39) // 64
    again = Request([*SYSTEM[:120], *tokens], max_new_tokens=40)
    batch.add(again)
    assert list(finish(batch).values()) == [expected(again)]
    assert batch.shared_tokens == 128


def test_a_draft_without_blocks_or_rows_follows_fewer_requests() -> None:
    batch, tokens = drafted({}, {"sequences": 2, "blocks": 2}), {}
    given = [Request([index] * 30, max_new_tokens=60) for index in range(4)]
    for request in given:
        batch.add(request)
    while batch:
        collect(batch, tokens)
        assert sum(job.draft is not None for job in batch._scheduler.running) <= 2
    assert tokens == {index: expected(request) for index, request in enumerate(given)}
    assert batch.drafts
    assert batch.drafts.stats.proposed > 0
    assert batch.preemptions == 0
    assert idle(batch)


def test_proposals_preempt_no_request() -> None:
    """Of two requests with a block each, and no other, neither gets proposals past it."""
    batch, tokens = drafted({"sequences": 2, "blocks": 2, "context": 128}, {"sequences": 2}), {}
    for index in range(2):
        batch.add(Request([index] * 50, max_new_tokens=14))
    finish(batch, tokens)
    assert batch.preemptions == 0
    assert tokens == {index: expected(Request([index] * 50, max_new_tokens=14)) for index in range(2)}


def test_a_request_without_proposals_releases_their_blocks() -> None:
    """The draft has blocks for two of three requests. In the main model 64 proposals need a second block for each."""
    main = {"sequences": 3, "blocks": 6, "sizes": (256,)}
    batch, tokens = drafted(main, {"sequences": 3, "blocks": 2}, most=64), {}
    given = [Request([index], max_new_tokens=70) for index in range(3)]
    for request in given:
        batch.add(request)
    collect(batch, tokens)
    collect(batch, tokens)
    assert [len(tokens[index]) for index in range(3)] == [
        65,
        66,
        2,
    ]  # one ends for want of a block, which the other uses
    assert used(batch) == 5
    finish(batch, tokens)
    assert tokens == {index: expected(request) for index, request in enumerate(given)}
    assert idle(batch)
