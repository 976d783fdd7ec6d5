"""A batch with a draft: distributions, scores, ends of sequences, failures, and pairs that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.drafts import Drafts
from bringup.compile.runtime.drawn import RequestFailed
from bringup.compile.runtime.request import Event, Request
from bringup.diagnostics import BringupError
from tests.runtime import exact
from tests.runtime.drafts.test_batches import SIZES, K, drafted, greedy, idle
from tests.runtime.exact import collect, expected, finish, logits_of
from tests.runtime.test_acceptance import RARE, chi_square, defined

PROMPT = [3, 1, 4, 1, 5]


def events_of(batch: Batch, *requests: Request) -> list[list[Event]]:
    """The events of each request, all at once."""
    ids = [batch.add(request) for request in requests]
    found: dict[int, list[Event]] = {each: [] for each in ids}
    while batch:
        for event in batch.step():
            found[event.id].append(event)
    return [found[each] for each in ids]


@pytest.mark.parametrize("period", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_second_token_has_the_distribution_of_the_main_model(period: int) -> None:
    """With a draft of the same logits, and of others; four requests at a time, of different settings."""
    batch, rounds = drafted(period=period, most=1), 1500
    settings: list[dict[str, Any]] = [{"temperature": 0.5}, {"temperature": 0.7, "top_k": 4}]
    counts = np.zeros((2, 30))
    for seed in range(0, rounds, 2):
        requests = [
            Request([1, 2], max_new_tokens=3, seed=seed + more, **settings[which])
            for which in (0, 1)
            for more in (0, 1)
        ]
        for index, events in enumerate(events_of(batch, *requests)):
            counts[index // 2][events[1].token] += 1
    for which, given in enumerate(settings):
        full = {"top_p": 1.0, "top_k": 0} | given
        first = defined(logits_of([(1, 0), (2, 0)]), **full)
        then = np.array([defined(logits_of([(1, 0), (2, 0), (token, 0)]), **full) for token in range(30)])
        wanted = rounds * (first @ then)
        often = wanted > 5
        assert not counts[which][wanted == 0].any()
        observed = [*counts[which][often], counts[which][~often].sum()]
        rare = max(wanted[~often].sum(), 1e-9)
        assert chi_square(np.array(observed), np.array([*wanted[often], rare])) > RARE
    assert batch.drafts
    assert (batch.drafts.stats.acceptance_rate == 1.0) is (period == 0)


def test_a_seed_repeats_its_tokens() -> None:
    def run(*seeds: int) -> list[list[int]]:
        given = [Request(PROMPT, max_new_tokens=30, temperature=1.0, seed=seed) for seed in seeds]
        return [[event.token for event in events] for events in events_of(drafted(period=3), *given)]

    assert run(1, 2, 3) == run(1, 2, 3)
    first, second = run(1, 2)
    assert first != second


SHIFTED = {"logit_bias": {2: 1.5, 7: -100.0}, "presence_penalty": 0.7, "frequency_penalty": 0.4}


@pytest.mark.parametrize("period", [0, 3])
def test_penalties_and_scores_are_those_without_a_draft(period: int) -> None:
    given = [
        Request(PROMPT, max_new_tokens=30, **SHIFTED),
        Request(PROMPT, max_new_tokens=30, logprobs=3),
        Request(PROMPT, max_new_tokens=30, logprobs=2, prompt_logprobs=True, presence_penalty=1.0),
        Request(PROMPT, max_new_tokens=30),
    ]
    found = events_of(drafted(period=period), *given)
    plain = events_of(exact.new_batch(all_logits=True), *given)
    for ours, theirs in zip(found, plain, strict=True):
        assert [each[:3] + each[4:6] for each in ours] == [each[:3] + each[4:6] for each in theirs]
        assert all(each.draft for each in ours)
        assert not any(each.draft for each in theirs)
    if not period:
        assert found[0][-1].draft.acceptance_rate == 1.0  # type: ignore[union-attr]


def test_an_end_of_sequence_among_accepted_tokens() -> None:
    """The tokens after it have no events, wherever it is in a step."""
    whole = expected(Request(PROMPT, max_new_tokens=40))
    given = [Request(PROMPT, max_new_tokens=40, eos={whole[place]}) for place in range(12)]
    batch = drafted()
    for request, events in zip(given, events_of(batch, *given), strict=True):
        assert [event.token for event in events] == expected(request)
        assert [event.reason for event in events] == [None] * (len(events) - 1) + ["eos"]
    assert idle(batch)


def test_the_end_of_the_context() -> None:
    batch = drafted({"context": 70})
    (events,) = events_of(batch, Request(PROMPT, max_new_tokens=200))
    assert [event.token for event in events] == expected(Request(PROMPT, max_new_tokens=200), context=70)
    assert events[-1].reason == "context"
    assert idle(batch)


@pytest.mark.parametrize("which", ["main", "draft"])
def test_a_step_that_fails_changes_no_request(which: str) -> None:
    batch, tokens = drafted(period=4), {}
    assert batch.drafts
    executor = batch.executor if which == "main" else batch.drafts.engine.executor
    given = [Request(PROMPT, max_new_tokens=60, temperature=1.0, seed=1), *greedy(5)]
    for request in given:
        batch.add(request)
    calls = lost = 0

    def fault() -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0 and lost < 9:
            raise RuntimeError("device lost")

    executor.fault = fault  # type: ignore[attr-defined]
    while batch:
        states = {job.id: job.random.bit_generator.state for job in batch._scheduler.running}
        try:
            collect(batch, tokens)
        except RuntimeError:
            lost += 1
            assert idle(batch)
            for job in batch._scheduler.waiting:
                assert job.random.bit_generator.state == states.get(job.id, job.random.bit_generator.state)
    assert lost == 9
    assert len(tokens.pop(0)) == 60
    assert tokens == {index: expected(given[index]) for index in range(1, 6)}


@pytest.mark.parametrize(("which", "of"), [("main", ""), ("draft", "of the draft ")])
def test_logits_that_are_no_numbers_name_their_request(which: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tokens = drafted({"sizes": (32,)}), {}
    given = [Request([index + 1] * 5, max_new_tokens=20) for index in range(3)]
    for request in given:
        batch.add(request)
    collect(batch, tokens)
    assert batch.drafts
    executor = batch.executor if which == "main" else batch.drafts.engine.executor
    step = executor.step

    def broken(entry: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = step(entry, arrays)
        if entry.startswith("decode") or which == "main":
            row = 1 if which == "draft" else int(arrays["starts"][2]) - 1
            results["logits"][row] = np.nan
        return results

    monkeypatch.setattr(executor, "step", broken)
    with pytest.raises(RequestFailed, match=rf"BU607.*NaN for logits {of}of request 1") as error:
        batch.step()
    assert error.value.request == 1
    monkeypatch.undo()
    assert batch.remove(1)
    finish(batch, tokens)
    assert [tokens[index] for index in (0, 2)] == [expected(given[index]) for index in (0, 2)]
    assert idle(batch)


def test_settings_and_pairs_that_do_not_fit() -> None:
    main, draft = exact.new_opened(sizes=SIZES, all_logits=True), exact.new_opened(sizes=SIZES)
    with pytest.raises(BringupError, match=r"BU024.*draft_tokens"):
        Drafts(main, draft, 0)
    with pytest.raises(BringupError, match=r"BU049.*the last token of a step.*\n.*compile it with --draft-tokens 4"):
        Drafts(draft, main, K)
    with pytest.raises(BringupError, match=r"BU049.*up to 128 tokens, not 132\n.*compile it with --draft-tokens 32"):
        Drafts(main, draft, 32)
    Drafts(main, draft, 31)
    small = exact.new_opened(sizes=SIZES)
    small.manifest["vocab_size"] = 29
    with pytest.raises(BringupError, match=r"BU049.*29 tokens"):
        Drafts(main, small)
