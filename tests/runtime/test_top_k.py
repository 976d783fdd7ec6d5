"""`top_k` of a request or a session: the tokens of the definition, also where the executor could draw by itself."""

from __future__ import annotations

import pytest

from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from tests.runtime import exact


@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("top_k", [0, 1, 2, 5, 30, 99])
def test_tokens_are_drawn_from_the_likeliest(top_k, top_p):
    batch = exact.new_batch()
    requests = [
        Request([seed + 1, 2], max_new_tokens=20, temperature=2.0, top_p=top_p, top_k=top_k, seed=seed)
        for seed in range(6)
    ]
    ids = [batch.add(request) for request in requests]
    found = exact.finish(batch)
    assert [found[id] for id in ids] == [exact.expected(request) for request in requests]


def test_an_executor_does_not_draw_what_it_cannot_cut(monkeypatch):
    batch = exact.new_batch()
    monkeypatch.setattr(batch._engine, "can_draw", lambda count: True)
    monkeypatch.setattr(batch._engine, "draw", lambda parts, draws: 1 / 0)
    cut = Request([1], max_new_tokens=4, temperature=2.0, top_k=3)
    first = batch.add(cut)
    assert exact.finish(batch)[first] == exact.expected(cut)
    batch.add(Request([1], max_new_tokens=4))
    with pytest.raises(ZeroDivisionError):
        exact.finish(batch)


@pytest.mark.parametrize("top_k", [0, 1, 5])
def test_a_session_gives_the_tokens_of_the_request(top_k, monkeypatch):
    session = Session(exact.new_batch()._opened)
    settings = {"max_new_tokens": 20, "temperature": 2.0, "top_p": 0.9, "top_k": top_k, "seed": 3}
    assert list(session.generate([4, 2], **settings)) == exact.expected(Request([4, 2], **settings))
    monkeypatch.setattr(session._engine, "can_draw", lambda count: True)
    monkeypatch.setattr(session._engine, "draw", lambda parts, draws: 1 / 0)
    if top_k:
        assert list(session.generate([4, 2], **settings)) == exact.expected(Request([4, 2], **settings))
    else:
        with pytest.raises(ZeroDivisionError):
            list(session.generate([4, 2], **settings))


@pytest.mark.parametrize("top_k", [-1, 1.5, "3"])
def test_what_is_no_number_of_tokens(top_k):
    with pytest.raises(BringupError, match="BU024: `top_k` does not take"):
        Request([1], max_new_tokens=1, top_k=top_k).checked()
    with pytest.raises(BringupError, match="BU024: `top_k` does not take"):
        next(Session(exact.new_batch()._opened).generate([1], max_new_tokens=1, top_k=top_k))
