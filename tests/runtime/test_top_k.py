"""`top_k` of a request or a session: the tokens of the definition, also where the executor samples them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from bringup.compile.program.program import Draw
from bringup.compile.program.shares import token_of
from bringup.compile.runtime.batch import Batch
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


class Drawing(exact.Exact):
    """An executor that samples the tokens of decode steps by the settings that it is given."""

    def __init__(self, executor: exact.Exact) -> None:
        super().__init__(executor.interface, executor.seen)
        self.limits: list[int] = []  # `top_k` of each token

    def can_draw(self, entry: str) -> bool:
        return True

    def can_continue(self, entry: str, draws: Sequence[Draw]) -> bool:
        return False

    def draw(
        self, entry: str, step: Mapping[str, np.ndarray] | None, draws: Sequence[Draw], *, ahead: bool = False
    ) -> list[int]:
        assert step is not None
        logits = self.step(entry, step)["logits"]
        self.limits += [each.top_k for each in draws]
        return [token_of(row, each) for row, each in zip(logits, draws, strict=False)]


def drawing(opened: Batch | Session) -> Drawing:
    """The executor of a batch or a session, exchanged for one that samples."""
    engine = opened._engine
    assert isinstance(engine.executor, exact.Exact)
    engine.executor = found = Drawing(engine.executor)
    return found


def test_an_executor_draws_from_the_likeliest():
    """All but the first token of each request, also next to a request without a limit; not with a bias."""
    batch = exact.new_batch()
    executor = drawing(batch)
    requests = [
        Request([1, at], max_new_tokens=6, temperature=2.0, top_p=0.9, top_k=top_k) for at, top_k in enumerate((3, 0))
    ]
    ids = [batch.add(request) for request in requests]
    found = exact.finish(batch)
    assert [found[id] for id in ids] == [exact.expected(request) for request in requests]
    assert executor.limits == [3, 0] * 5
    batch.add(Request([1], max_new_tokens=4, temperature=2.0, top_k=3, logit_bias={2: 1.0}))
    exact.finish(batch)
    assert len(executor.limits) == 10


@pytest.mark.parametrize("top_k", [0, 1, 5])
def test_a_session_gives_the_tokens_of_the_request(top_k):
    session = Session(exact.new_batch()._opened)
    settings = {"max_new_tokens": 20, "temperature": 2.0, "top_p": 0.9, "top_k": top_k, "seed": 3}
    wanted = exact.expected(Request([4, 2], **settings))
    assert list(session.generate([4, 2], **settings)) == wanted
    executor = drawing(session)
    assert list(session.generate([4, 2], **settings)) == wanted
    assert executor.limits == [top_k] * 19


@pytest.mark.parametrize("top_k", [-1, 1.5, "3"])
def test_what_is_no_number_of_tokens(top_k):
    with pytest.raises(BringupError, match=r"BU024: invalid value .* for `top_k`"):
        Request([1], max_new_tokens=1, top_k=top_k).checked()
    with pytest.raises(BringupError, match=r"BU024: invalid value .* for `top_k`"):
        next(Session(exact.new_batch()._opened).generate([1], max_new_tokens=1, top_k=top_k))
