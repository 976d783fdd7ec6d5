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

    def uniform(self, total: int) -> int:
        """The number of tokens that it can propose after the first `total`; 0 or less if it can propose none."""
        ...

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

    def uniform(self, total: int) -> int:
        return self._draft.uniform(total)

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        draft = self._draft
        draft.resume(tokens)  # removes what was not accepted
        rest = tokens[len(draft.tokens) :]
        logits = [draft.decode(each) for each in rest][-1] if len(rest) <= DECODED else draft.begin(tokens, resume=True)
        found, certain = [propose(logits)], len(draft.tokens)
        while len(found) < count:
            if draft.interface.recurrent:  # its states cannot be rewound, so they never contain proposals
                logits = draft.check([], [each.token for each in found])[-1]
                draft.rewind(certain)
            else:
                logits = draft.decode(found[-1].token)
            found.append(propose(logits))
        return found

    def accepted(self, count: int) -> None: ...


class HiddenProposer:
    """A draft that reads the main model's hidden states: row i has token i + 1, and the hidden states of row i.

    The hidden states after its own proposals are not known yet. There it reads its own instead, as vLLM and SGLang do,
    and these rows are computed again from the main model's states. If it has an input of its own for them, each row
    has zeros in the other.

    The rows that it has read are not stored. So it cannot compute its sequence again: once that exceeds a length at
    which the draft's rope changes, it proposes nothing until the next sequence.
    """

    resumes = False

    def __init__(self, draft: Session, main: Session, hidden: Sequence[str], own: str) -> None:
        """`hidden` names the outputs of the main model that the input `hidden` concatenates, `own` the draft's."""
        self._draft, self._main, self._hidden, self._own = draft, main, hidden, own
        # Of the main model, [N, k m] each, that the draft has not read; None if it proposes nothing more.
        self._rows: list[np.ndarray] | None = None
        self._widths = {spec.name: spec.shape[-1] for spec in draft.interface.entries[-1].token_inputs}

    def begin(self) -> None:
        self._draft.reset()
        self._rows = [self._states()]

    def uniform(self, total: int) -> int:
        if self._rows is None:
            return 0
        read = len(self._draft.tokens) or total - 1  # before its first proposal, it reads all rows at once
        return self._draft.uniform(read) - (total - read)

    def propose(self, tokens: Sequence[int], count: int, propose: Propose) -> list[Proposal]:
        draft, first = self._draft, next(iter(self._widths))
        assert self._rows, "`uniform` limits the number of proposals"
        rows = self._inputs(first, np.concatenate(self._rows))
        logits = draft.prefill(tokens[1 + len(draft.tokens) :], **rows)[-1]
        self._rows = []
        read, found = len(draft.tokens), [propose(logits)]
        while len(found) < count:
            own = self._inputs(list(self._widths)[-1], draft.hidden[self._own][-1:])
            found.append(propose(draft.decode(found[-1].token, **own)))
        rewound = draft.rewind(read)
        assert rewound, "`check_pair` limits the number of proposals"
        return found

    def accepted(self, count: int) -> None:
        if self._rows is None or self._ends(len(self._main.tokens) + 1):
            self._rows = None
        else:
            self._rows.append(self._states()[:count])

    def _ends(self, total: int) -> bool:
        """Whether it can propose nothing after `total` or more tokens. Before its first proposal, it may after more."""
        return self.uniform(total) <= 0 and bool(self._draft.tokens or self._draft.uniform(total + 1) <= 0)

    def _states(self) -> np.ndarray:
        return np.concatenate([self._main.hidden[name] for name in self._hidden], axis=-1)

    def _inputs(self, name: str, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs of a step: `rows` as the one of this name, zeros as the other."""
        others = {other: np.zeros((len(rows), width), rows.dtype) for other, width in self._widths.items()}
        return others | {name: rows}
