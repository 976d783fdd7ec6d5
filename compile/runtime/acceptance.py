"""Which of a draft's proposals become tokens: speculative sampling, which keeps the main model's distribution.

A proposal t, sampled from the draft's distribution q, is accepted with probability min(1, p[t] / q[t]), where p is the
main model's. The first one that is not accepted is replaced by a token sampled from max(0, p - q), normalised, and ends
the step. The tokens then have the distribution p (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5; Chen et al.
2023, arXiv 2302.01318). Temperature 0: a proposal is accepted if it is the main model's most likely token.

V vocabulary · R rows of the step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bringup.compile.program.program import Draw
from bringup.compile.program.shares import probabilities_of
from bringup.compile.runtime.sampling import check_logits, next_token


class Proposal(NamedTuple):
    """A token of the draft, and the distribution that it was sampled from, float64 [V]; None for temperature 0."""

    token: int
    probabilities: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Sampler:
    """The settings of `Session.generate`, for the draft and for the main model. Errors are those of `next_token`."""

    temperature: float
    top_p: float
    top_k: int
    random: np.random.Generator

    def token(self, logits: np.ndarray) -> int:
        """Samples a token from logits [V]."""
        return next_token(logits, self.temperature, self.top_p, self.random, self.top_k)

    def propose(self, logits: np.ndarray) -> Proposal:
        """Samples a proposal from the draft's logits [V]."""
        check_logits(logits, " of the draft")
        return Proposal(self.token(logits), self._probabilities(logits) if self.temperature else None)

    def accept(self, logits_RV: np.ndarray, proposed: Sequence[Proposal]) -> list[int]:
        """The accepted proposals, and one token more: a replacement, or the one after all proposals.

        Row i has the main model's logits at the position of proposal i; the last row is for the token after them.
        """
        for index, proposal in enumerate(proposed):
            replacement = self._replacement(logits_RV[index], proposal)
            if replacement is not None:
                return [*(each.token for each in proposed[:index]), replacement]
        return [*(each.token for each in proposed), self.token(logits_RV[len(proposed)])]

    def _replacement(self, logits: np.ndarray, proposal: Proposal) -> int | None:
        """The token for a proposal that is not accepted."""
        token, q = proposal
        if q is None:
            best = self.token(logits)
            return None if best == token else best
        check_logits(logits)
        p = self._probabilities(logits)
        if self.random.random() * q[token] < p[token]:
            return None
        rest = np.maximum(p - q, 0)
        sums: np.ndarray = np.cumsum(rest if rest.any() else p)  # rounding alone can leave none
        return int(np.searchsorted(sums, self.random.random() * float(sums[-1]), side="right"))

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return probabilities_of(logits, Draw(float(self.temperature), float(self.top_p), 0.0, self.top_k))
