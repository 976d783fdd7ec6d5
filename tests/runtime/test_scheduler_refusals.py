"""Requests that are refused, steps that fail, why requests end, and what is counted of them."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.runtime.request import Request
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import BLOCK
from tests.runtime.exact import VOCABULARY, collect, expected, finish, new_batch
from tests.runtime.test_scheduler import SYSTEM, requests, used


def test_a_step_that_fails_takes_nothing_in() -> None:
    batch, tokens = new_batch(3), {}
    given = requests(6)
    for request in given:
        batch.add(request)
    executor = batch._engine.executor
    calls = 0

    def fault() -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise RuntimeError("device lost")

    executor.fault = fault  # type: ignore[attr-defined]
    lost = 0
    while batch:
        try:
            collect(batch, tokens)
        except RuntimeError:
            lost += 1
            assert used(batch) == 0
            executor.fault = fault if lost < 9 else lambda: None  # type: ignore[attr-defined]
    assert lost == 9
    assert tokens == {index: expected(request) for index, request in enumerate(given)}


def test_logits_that_are_no_numbers_name_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tokens = new_batch(3), {}
    given = [Request([index + 1] * 5, max_new_tokens=4, temperature=1.0) for index in range(3)]
    for request in given:
        batch.add(request)
    collect(batch, tokens)
    step = batch._engine.executor.step

    def broken(entry: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = step(entry, arrays)
        for row, at in enumerate(arrays["slots"]):
            if batch._engine.executor.rows[at // BLOCK * BLOCK][0] == 2:  # type: ignore[attr-defined]
                results["logits"][min(row, len(results["logits"]) - 1)] = np.nan
        return results

    monkeypatch.setattr(batch._engine.executor, "step", broken)
    with pytest.raises(BringupError, match=r"BU607.*NaN for logits of request 1"):
        batch.step()
    monkeypatch.undo()
    assert batch.remove(1)
    assert not batch.remove(1)
    finish(batch, tokens)
    assert [tokens[index] for index in (0, 2)] == [expected(given[index]) for index in (0, 2)]


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        ("BU015", Request([], max_new_tokens=1)),
        ("BU015", Request([VOCABULARY], max_new_tokens=1)),
        ("BU015", Request([1.5], max_new_tokens=1)),  # type: ignore[list-item]
        ("BU016", Request([1] * 257, max_new_tokens=1)),
        ("BU019", Request([1], max_new_tokens=1, temperature=-1)),
        ("BU019", Request([1], max_new_tokens=1, temperature=10**390)),
        ("BU019", Request([1], max_new_tokens=1, top_p=0)),
        ("BU019", Request([1], max_new_tokens=1, top_p=10**390)),
        ("BU024", Request([1], max_new_tokens=0)),
        ("BU024", Request([1], max_new_tokens=1, seed=-1)),
        ("BU024", Request([1], max_new_tokens=1, eos=3)),  # type: ignore[arg-type]
    ],
)
def test_requests_that_are_refused(code: str, request_: Request) -> None:
    batch = new_batch()
    with pytest.raises(BringupError, match=code) as error:
        batch.add(request_)
    assert len(error.value.findings[0].message) < 200
    assert not batch


def test_reasons() -> None:
    batch = new_batch()
    prompt = [4, 5, 6]
    alone = expected(Request(prompt, max_new_tokens=3))
    for request in (
        Request(prompt, max_new_tokens=3),
        Request(iter(prompt), max_new_tokens=3, eos=alone[:1]),
        Request([1] * 256, max_new_tokens=3),
        Request(np.array(prompt), max_new_tokens=1, eos=alone[:1]),
    ):
        batch.add(request)
    reasons: dict[int, str | None] = {}
    while batch:
        reasons |= {event.id: event.reason for event in batch.step()}
    assert reasons == {0: "length", 1: "eos", 2: "context", 3: "eos"}


def test_stats_count_what_was_computed() -> None:
    batch = new_batch(2)
    batch.add(Request(SYSTEM, max_new_tokens=4))
    last = [event for _ in range(8) for event in batch.step()][-1]
    assert (last.stats.prefill_tokens, last.stats.decode_tokens) == (len(SYSTEM), 3)
    assert last.stats.prefill_seconds > 0
    assert last.stats.decode_seconds > 0
