"""Bias, penalties and logprobs of a batch's requests, by numpy on the logits of `exact.py` and OpenAI's formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bringup.compile.runtime.request import Event, Request
from bringup.diagnostics import BringupError
from tests.runtime import exact

PROMPT = [3, 1, 4, 1, 5]
SHIFTED = {"logit_bias": {2: 1.5, 7: -100.0}, "presence_penalty": 0.7, "frequency_penalty": 0.4, "temperature": 1.3}


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    return exact.logits_of([(token, 0) for token in tokens]).astype(np.float64)


def logprobs_after(tokens: Sequence[int]) -> np.ndarray:
    logits = logits_after(tokens)
    return logits - np.log(np.exp(logits).sum())


def expected(request: Request) -> list[int]:
    """OpenAI's rule: mu[j] - c[j] * frequency - (c[j] > 0) * presence, c[j] the times that j was drawn before."""
    random, new = np.random.default_rng(request.seed), []
    for _ in range(request.max_new_tokens):
        logits = logits_after([*map(int, request.tokens), *new])
        for token, bias in request.logit_bias.items():
            logits[token] += bias
        for token in range(len(logits)):
            times = new.count(token)
            logits[token] -= times * request.frequency_penalty + (times > 0) * request.presence_penalty
        new.append(exact.draw(logits.astype(np.float32), request, random))
    return new


def run(*requests: Request, **sizes: Any) -> tuple[list[list[Event]], Any]:
    """The events of each request, all at once."""
    batch = exact.new_batch(**sizes)
    ids = [batch.add(request) for request in requests]
    found: dict[int, list[Event]] = {each: [] for each in ids}
    while batch:
        for event in batch.step():
            found[event.id].append(event)
    return [found[each] for each in ids], batch


@pytest.mark.parametrize("settings", [{"logit_bias": {9: 3.0}}, {"presence_penalty": 2.0}, {"frequency_penalty": -1.0},
                                      SHIFTED], ids=lambda settings: "+".join(settings))  # fmt: skip
def test_tokens_are_drawn_from_shifted_logits(settings):
    shifted = Request(PROMPT, max_new_tokens=20, seed=5, **settings)
    plain = Request(PROMPT, max_new_tokens=20)
    (first, second), _ = run(shifted, plain)
    assert [event.token for event in first] == expected(shifted)
    assert [event.token for event in second] == exact.expected(plain)
    assert expected(shifted) != exact.expected(plain)
    assert all(event.score is None and not event.prompt_scores for event in (*first, *second))


def test_scores_are_those_of_the_unshifted_logits():
    request = Request(PROMPT, max_new_tokens=8, logprobs=3, **SHIFTED)
    (events, plain), _ = run(request, Request(PROMPT, max_new_tokens=8, logprobs=0))
    tokens = list(PROMPT)
    for event in events:
        wanted = logprobs_after(tokens)
        assert event.score is not None
        assert event.score.token == event.token
        assert event.score.logprob == pytest.approx(wanted[event.token], abs=1e-6)
        order = np.argsort(-wanted)[:3]
        assert [token for token, _ in event.score.top] == list(order)
        assert [logprob for _, logprob in event.score.top] == pytest.approx(list(wanted[order]), abs=1e-6)
        tokens.append(event.token)
    assert all(event.score and event.score.top == () for event in plain)
    assert not events[0].prompt_scores


def test_a_prompt_is_scored_whatever_runs_and_whatever_is_in_the_cache():
    """Of a program that gives the last logits only. Blocks run out, so requests are computed again."""
    prompts = [[n % 29 + 1 for n in range(start, start + 40)] for start in (0, 0, 3, 4)]
    requests = [Request(p, max_new_tokens=60, logprobs=1, prompt_logprobs=n != 0) for n, p in enumerate(prompts)]
    found, batch = run(*requests, blocks=4)
    assert batch.preemptions
    for request, events in zip(requests, found, strict=True):
        prompt = list(map(int, request.tokens))
        assert [event.token for event in events] == exact.expected(request)
        assert not any(event.prompt_scores for event in events[1:])
        scores = events[0].prompt_scores
        assert len(scores) == (len(prompt) if request.prompt_logprobs else 0)
        for at, score in enumerate(scores):
            if score is None:
                assert at == 0, "nothing is before the first token alone"
                continue
            wanted = logprobs_after(prompt[:at])
            assert score.token == prompt[at]
            assert score.logprob == pytest.approx(wanted[prompt[at]], abs=1e-6)
            assert score.top == ((int(wanted.argmax()), pytest.approx(wanted.max(), abs=1e-6)),)


def test_equal_logits_are_in_the_order_of_tokens():
    from bringup.compile.runtime.scores import score_of

    score = score_of(np.array([0, 1, 1, 1, -np.inf], np.float32), 4, 2)
    assert score.top == tuple((token, pytest.approx(-np.log(3 + np.exp(-1)))) for token in (1, 2))
    assert score.logprob == -np.inf
    assert len(score_of(np.zeros(3, np.float32), 0, 9).top) == 3


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"logit_bias": {30: 1.0}}, "BU015"), ({"logit_bias": {"1": 1.0}}, "BU024"), ({"logit_bias": 3}, "BU024"),
     ({"logit_bias": {1: float("nan")}}, "BU019"), ({"presence_penalty": 1e7}, "BU019"),
     ({"presence_penalty": 10**390}, "BU019"), ({"logit_bias": {1: -(10**390)}}, "BU019"),
     ({"frequency_penalty": "1"}, "BU019"), ({"logprobs": -1}, "BU024")],
)  # fmt: skip
def test_what_is_no_setting_is_refused(settings, code):
    with pytest.raises(BringupError) as error:
        exact.new_batch().add(Request(PROMPT, max_new_tokens=1, **settings))
    assert error.value.findings[0].code == code
