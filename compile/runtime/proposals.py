"""How a draft proposes tokens: from tokens alone, or from the main model's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from bringup.compile.runtime.acceptance import Proposal
from bringup.compile.runtime.session import Session

DECODED = 2  # so many tokens are decoded one by one: a prefill entry would pad them

Propose = Callable[[np.ndarray], Proposal]


class Proposer(Protocol):
    """Proposes tokens. `resumes`: it supports sequences that begin with those of the previous one."""

    resumes: bool

    def begin(self) -> None:
        """The main model has processed the prompt of a new sequence."""

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        """Proposes `count` (at least one) tokens after `tokens`, of which the main model has processed all but the
        last. `propose` samples one from logits [V]."""
        ...

    def accepted(self, count: int) -> None:
        """The main model has processed a step, of which the first `count` tokens remain in the sequence."""


class TokenProposer:
    """A draft that reads tokens: any model with the same vocabulary."""

    resumes = True

    def __init__(self, draft: Session) -> None:
        self._draft = draft

    def begin(self) -> None: ...

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        draft = self._draft
        draft.resume(tokens)  # removes what was not accepted
        rest = tokens[len(draft.tokens) :]
        logits = [draft.decode(each) for each in rest][-1] if len(rest) <= DECODED else draft.begin(tokens, resume=True)
        found = [propose(logits)]
        while len(found) < count:
            found.append(propose(draft.decode(found[-1].token)))
        return found

    def accepted(self, count: int) -> None: ...


class HiddenProposer:
    """A draft that reads the main model's hidden states: row i has token i + 1, and the hidden state of row i.

    The hidden state after its own proposals is not known yet. There it reads its own instead, as vLLM and SGLang do,
    and these rows are computed again from the main model's states.
    """

    resumes = False

    def __init__(self, draft: Session, main: Session, hidden: str, own: str) -> None:
        """`hidden` and `own` name the outputs of the main model and of the draft that are the input `hidden`."""
        self._draft, self._main, self._hidden, self._own = draft, main, hidden, own
        self._rows: list[np.ndarray] = []  # of the main model, [N, m] each, that the draft has not read

    def begin(self) -> None:
        self._draft.reset()
        self._rows = [self._main.hidden[self._hidden]]

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        draft = self._draft
        logits = draft.prefill(tokens[1 + len(draft.tokens) :], hidden=np.concatenate(self._rows))[-1]
        self._rows = []
        read, found = len(draft.tokens), [propose(logits)]
        while len(found) < count:
            found.append(propose(draft.decode(found[-1].token, hidden=draft.hidden[self._own][-1:])))
        rewound = draft.rewind(read)
        assert rewound, "`check_pair` limits the number of proposals"
        return found

    def accepted(self, count: int) -> None:
        self._rows.append(self._main.hidden[self._hidden][:count])
