"""Speculative decoding on a program whose logits are a hash of its cache: a rejected token that is read changes them.

The expected tokens are those of `exact.expected`, which has neither cache, steps nor draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers.models import WordLevel

from bringup.compile.runtime.acceptance import Proposal
from bringup.compile.runtime.proposals import Propose
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session
from bringup.compile.runtime.speculative import Speculative
from bringup.compile.text.tokenizer import Tokenizer
from bringup.diagnostics import BringupError
from tests.runtime.exact import VOCABULARY, expected, new_session

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
K = 4
RECURRENT = {"kind": "sequence", "proposals": K}
# What the states of a token depend on besides the tokens: nothing; LongRoPE; dynamic rope; both lengths in one step.
# Then states of a sequence that each of its tokens changes.
LONG, DYNAMIC = {"recompute": (70, 73)}, {"varies": 75}
ROPES: dict[str, dict[str, Any]] = {
    "fixed": {}, "longrope": LONG, "dynamic": DYNAMIC,
    "recurrent": RECURRENT, "recurrent-longrope": {**RECURRENT, **LONG}, "recurrent-dynamic": {**RECURRENT, **DYNAMIC},
}  # fmt: skip


class Scripted:
    """Proposes the expected tokens, `right` of them in each step, and then wrong ones."""

    resumes = True

    def __init__(self, tokens: Sequence[int], right: Callable[[int], int]) -> None:
        self.tokens, self.right = tokens, right
        self.counts: list[int] = []

    def begin(self) -> None: ...

    def uniform(self, total: int) -> int:
        return K

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        right = self.right(len(self.counts))
        self.counts.append(count)
        following = self.tokens[len(tokens) : len(tokens) + count]
        return [Proposal(token if place < right else (token + 1) % VOCABULARY) for place, token in enumerate(following)]

    def accepted(self, count: int) -> None: ...


def scripted(main: Session, tokens: Sequence[int], right: Callable[[int], int]) -> tuple[Speculative, Scripted]:
    pair = Speculative(main, new_session(main.max_seq_len), K)
    script = pair._proposer = Scripted(tokens, right)
    return pair, script


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("right", [*range(K + 1), None], ids=str)
def test_each_number_of_accepted_tokens(rope: str, right: int | None) -> None:
    """To the end of the context, with 0 to K accepted tokens in each step, or another number in each (None)."""
    settings = ROPES[rope]
    context = 100
    request = Request(PROMPT, max_new_tokens=200)
    wanted = expected(request, context=context, **settings)
    assert len(wanted) == context - len(PROMPT) + 1
    plain, main = new_session(context, **settings), new_session(context, **settings)
    assert list(plain.generate(PROMPT, max_new_tokens=200)) == wanted
    pair, script = scripted(main, [*PROMPT, *wanted], lambda step: step * 7 % (K + 1) if right is None else right)
    assert list(pair.generate(PROMPT, max_new_tokens=200)) == wanted
    assert list(main.tokens) == list(plain.tokens)
    assert pair.stats.tokens == len(wanted) - 1 == pair.stats.accepted + pair.stats.steps
    assert pair.stats.proposed == sum(script.counts)
    if right is not None:
        assert pair.stats.accepted == sum(min(count, right) for count in script.counts)
    if not settings:
        assert set(script.counts[:-5]) == {K}
    at = slice(0, len(main.tokens))
    assert (main.executor.states()["rows"][at] == plain.executor.states()["rows"][at]).all()


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7, 70])
def test_the_sequence_continues_after_the_last_token(rope: str, count: int) -> None:
    """As after `Session.generate`: the last new token is not in the cache, and nothing after it."""
    settings = ROPES[rope]
    plain, main = new_session(**settings), new_session(**settings)
    wanted = list(plain.generate(PROMPT, max_new_tokens=count))
    assert wanted == expected(Request(PROMPT, max_new_tokens=count), **settings)[:count]
    pair = Speculative(main, new_session(**settings), K)
    assert list(pair.generate(PROMPT, max_new_tokens=count)) == wanted
    assert list(main.tokens) == list(plain.tokens)
    assert (main.decode(7) == plain.decode(7)).all()


@pytest.mark.parametrize("rope", ROPES)
def test_a_model_is_its_own_draft(rope: str) -> None:
    """Every proposal is accepted, and each step but the last adds K + 1 tokens if no length of a rope ends it."""
    settings = ROPES[rope]
    pair = Speculative(new_session(**settings), new_session(**settings), K)
    wanted = expected(Request(PROMPT, max_new_tokens=100), **settings)
    assert list(pair.generate(PROMPT, max_new_tokens=100)) == wanted
    stats = pair.stats
    assert stats.acceptance_rate == 1.0
    assert stats.accepted == stats.proposed > 0
    if rope == "fixed":
        assert (stats.steps, stats.proposed, stats.tokens) == (20, 79, 99)
        assert stats.tokens_per_step == 99 / 20
        assert [tokens for _, _, tokens in pair.main.executor.steps[1:]] == [K + 1] * 19 + [4]


def test_another_model_is_the_draft() -> None:
    """Of one with other logits few proposals are accepted, and the tokens are the same."""
    draft = new_session(all_logits=False)
    draft.executor.seen = lambda total: 5
    pair = Speculative(new_session(), draft, K)
    assert list(pair.generate(PROMPT, max_new_tokens=150)) == expected(Request(PROMPT, max_new_tokens=150))
    assert pair.stats.steps > 120
    assert 0 < pair.stats.acceptance_rate < 0.1


@pytest.mark.parametrize("context", [8, 20, 60])
def test_a_draft_with_a_shorter_context(context: int) -> None:
    """Past its end the tokens are decoded without it."""
    pair = Speculative(new_session(), new_session(context), K)
    assert list(pair.generate(PROMPT, max_new_tokens=100)) == expected(Request(PROMPT, max_new_tokens=100))
    last = context - len(PROMPT)
    assert pair.stats.accepted == pair.stats.proposed
    assert abs(pair.stats.proposed - last * K / (K + 1)) <= K


def test_an_end_of_sequence_among_accepted_tokens() -> None:
    """The tokens after it are not in the sequence, wherever it is in a step."""
    whole = expected(Request(PROMPT, max_new_tokens=40))
    for place in range(12):
        eos = {whole[place]}
        wanted = expected(Request(PROMPT, max_new_tokens=40, eos=eos))
        pair, plain = Speculative(new_session(), new_session(), K), new_session()
        assert list(pair.generate(PROMPT, max_new_tokens=40, eos=eos)) == wanted
        assert list(plain.generate(PROMPT, max_new_tokens=40, eos=eos)) == wanted
        assert list(pair.main.tokens) == list(plain.tokens) == PROMPT + wanted[:-1]


@pytest.mark.parametrize("rope", ["fixed", "recurrent"])
def test_a_conversation_resumes(rope: str) -> None:
    """Both models keep the common prefix of the next prompt."""
    pair, tokens = Speculative(new_session(**ROPES[rope]), new_session(**ROPES[rope]), K), list(PROMPT)
    for turn in range(4):
        wanted = expected(Request(tokens, max_new_tokens=13))
        assert list(pair.generate(tokens, max_new_tokens=13, resume=True)) == wanted
        assert pair.main.stats.prefill_tokens == (len(PROMPT) if turn == 0 else 4)
        assert pair.stats.acceptance_rate == 1.0
        tokens += [*wanted, 8, turn, 2]


def test_a_prompt_longer_than_the_longest_of_the_draft() -> None:
    """`max_input_len` limits what users pass, not the draft's part."""
    main, draft = new_session(), new_session()
    draft.manifest["max_input_len"] = 4
    draft = Session(draft._opened)
    assert list(Speculative(main, draft, K).generate(PROMPT, max_new_tokens=9)) == expected(
        Request(PROMPT, max_new_tokens=9)
    )
    main.manifest["max_input_len"] = 4
    with pytest.raises(BringupError, match="BU016"):
        next(Speculative(main, draft, K).generate(PROMPT, max_new_tokens=9))


@pytest.mark.parametrize("which", ["main", "draft"])
def test_another_call_during_generate(which: str) -> None:
    pair = Speculative(new_session(), new_session(), K)
    tokens = pair.generate(PROMPT, max_new_tokens=30)
    next(tokens)
    next(tokens)
    getattr(pair, which).prefill([1])
    with pytest.raises(BringupError, match="BU017"):
        list(tokens)
    assert list(pair.generate(PROMPT, max_new_tokens=30)) == expected(Request(PROMPT, max_new_tokens=30))


@pytest.mark.parametrize(("which", "of"), [("main", "logits\n"), ("draft", "logits of the draft\n")])
def test_logits_without_a_largest_one(which: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Speculative(new_session(), new_session(), K)
    executor = getattr(pair, which).executor
    tokens = pair.generate(PROMPT, max_new_tokens=30)
    next(tokens)
    step = executor.step
    monkeypatch.setattr(executor, "step", lambda *given: {"logits": step(*given)["logits"] * np.float32("nan")})
    with pytest.raises(BringupError, match=f"BU607.*{of}"):
        list(tokens)


def test_settings_out_of_range() -> None:
    pair = Speculative(new_session(), new_session(), K)
    for settings, code in ({"temperature": -1}, "BU019"), ({"top_k": -1}, "BU024"), ({"seed": 0.5}, "BU024"):
        with pytest.raises(BringupError, match=code):
            next(pair.generate(PROMPT, **{"max_new_tokens": 3} | settings))
    with pytest.raises(BringupError, match="BU024"):
        Speculative(new_session(), new_session(), 0)


def words(*listed: str) -> Tokenizer:
    return Tokenizer(
        tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(listed)}, listed[0])), frozenset()
    )


def test_tokenizers_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their vocabularies are compared if their files differ; a bundle without one is accepted."""
    main, draft = new_session(), new_session()
    main.manifest["files"] = {"tokenizer/tokenizer.json": "a"}
    monkeypatch.setattr(main, "tokenizer", lambda: words("a", "b", "c"))
    monkeypatch.setattr(draft, "tokenizer", lambda: words("a", "c", "b"))
    message = r"BU049: 2 token ids differ.*: 1 is 'b' but 'c'\n.*the same tokenizer"
    with pytest.raises(BringupError, match=message):
        Speculative(main, draft)
    monkeypatch.setattr(draft, "tokenizer", lambda: words("a", "b"))
    with pytest.raises(BringupError, match=r"1 token ids differ.*: 2 is 'c' but None"):
        Speculative(main, draft)
    monkeypatch.setattr(draft, "tokenizer", lambda: words("a", "b", "c"))
    Speculative(main, draft)
    monkeypatch.setattr(draft, "tokenizer", Session.tokenizer.__get__(draft))
    Speculative(main, draft)


def test_a_session_is_rewound() -> None:
    """Keys of dynamic rope depend on the length that the sequence had, so they cannot be."""
    session, fresh = new_session(), new_session()
    session.prefill([1, 2, 3, 4, 5])
    assert session.rewind(9)
    assert session.rewind(2)
    assert list(session.tokens) == [1, 2]
    fresh.prefill([1, 2])
    assert (session.decode(7) == fresh.decode(7)).all()
    with pytest.raises(BringupError, match=r"BU024.*count"):
        session.rewind(-1)
    session = new_session(varies=4)
    session.prefill([1, 2, 3, 4, 5])
    assert not session.rewind(2)
    assert list(session.tokens) == [1, 2, 3, 4, 5]
