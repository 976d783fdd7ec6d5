"""Speculative decoding: a draft proposes tokens, and one step of the main model checks all of them.

sequence   … t          t: sampled last, in neither cache
draft      a b c        proposed one after the other
main       t a b c      one prefill step; its rows are the logits for the places of a, b, c and the token after c
accepted   a b x        x: the main model's own token; c is removed from both caches
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Self, SupportsIndex

import numpy as np

from bringup.arguments import integer, integer_list
from bringup.compile.runtime.acceptance import Sampler
from bringup.compile.runtime.pair import proposer_of
from bringup.compile.runtime.sampling import check_sampling
from bringup.compile.runtime.session import Session
from bringup.compile.runtime.stats import DraftStats
from bringup.compile.runtime.token_ids import check_input, integers
from bringup.diagnostics import fail
from bringup.graphs.core.graph import OWN

# The mean number of tokens of a step is (1 - a^(K + 1)) / (1 - a) for K proposals that are accepted with probability a
# each (Leviathan et al. 2023, eq. 1). For a = 0.7 it is 2.8 with 4 and at most 3.3, so more proposals gain little.
DRAFT_TOKENS = 4


class Speculative:
    """A main model with a draft, both sessions of their own, which it uses. One sequence at a time.

    The draft is any model with the same vocabulary, or one with the input `hidden`: it reads hidden states of the main
    model at the position before each token, and after its own proposals its own last hidden state.
    `draft_tokens` is the largest number of proposals in a step. The default is 4; it is 1 for a draft with the input
    `hidden` and none for its own hidden state, because it was trained for one.

    Raises BU049 if the two do not fit: other vocabularies or tokenizers; a main model without logits of each token
    (`build(draft_tokens=…)`) or without the hidden states that the draft reads (`build(aux_hidden=…)`).
    """

    def __init__(self, main: Session, draft: Session, draft_tokens: int | None = None) -> None:
        if draft_tokens is None:
            inputs = {spec.name for spec in draft.interface.entries[-1].token_inputs}
            draft_tokens = 1 if inputs and OWN not in inputs else DRAFT_TOKENS
        self.main, self.draft = main, draft
        self.draft_tokens = integer("draft_tokens", draft_tokens, minimum=1)
        self.stats = DraftStats()  # of the last sequence; times are in `main.stats`
        self._proposer = proposer_of(main, draft, self.draft_tokens)

    def close(self) -> None:
        """Closes both sessions, as leaving a `with` block does."""
        self.main.close()
        self.draft.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def generate(
        self,
        tokens: Iterable[SupportsIndex],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        eos: Iterable[SupportsIndex] = frozenset(),
        resume: bool = False,
    ) -> Iterator[int]:
        """Generates tokens as `Session.generate` of the main model does, with the same arguments and errors.

        At temperature 0 these are the same tokens, unless two logits differ by less than the rounding of a step with
        several tokens. Otherwise they have the same distribution, but for a seed they are others. `resume` computes
        everything again for a draft with the input `hidden`.

        The main session is ahead of the tokens that have been read by those of the same step.
        """
        check_sampling(temperature, top_p)
        top_k, left = integer("top_k", top_k, minimum=0), integer("max_new_tokens", max_new_tokens, minimum=0)
        random = np.random.default_rng(integer("seed", seed, minimum=0))
        sampler = Sampler(float(temperature), float(top_p), top_k, random)
        sequence, ends = integers(tokens), frozenset(integer_list("eos", eos))
        main = self.main
        check_input(len(sequence), main.manifest.get("max_input_len"))
        logits = main.begin(sequence, resume=resume and self._proposer.resumes)
        self._proposer.begin()
        self.stats = DraftStats()
        new = [sampler.token(logits)] if left else []
        while new:
            turns = main.turn, self.draft.turn
            yield from new
            left -= len(new)
            if new[-1] in ends or not left:
                return
            if turns != (main.turn, self.draft.turn):
                help = "a session holds one sequence: finish it first, or load the bundle twice"
                raise fail("BU017", "a session was used by another call during generate()", help=help)
            if len(main.tokens) == main.max_seq_len:
                return
            sequence += new
            new = self._step(sequence, left, ends, sampler)

    def _step(self, sequence: list[int], left: int, ends: frozenset[int], sampler: Sampler) -> list[int]:
        """One step: its new tokens, 1 to `left`. The main model has processed all but the last of `sequence`."""
        main, proposer, start = self.main, self._proposer, time.perf_counter()
        total = len(sequence)
        count = min(self.draft_tokens, left - 1, main.uniform(total), proposer.uniform(total))
        proposed = proposer.propose(sequence, count, sampler.propose) if count > 0 else []
        last = sequence[-1:]
        logits_RV = main.check(last, [each.token for each in proposed]) if proposed else main.prefill(last)
        new = sampler.accept(logits_RV, proposed)
        accepted = len(new) - 1
        new = new[: next((place for place, token in enumerate(new, 1) if token in ends), None)]
        rewound = not proposed or main.rewind(total - 1 + len(new))
        assert rewound, "`proposer_of` and `uniform` limit the number of proposals"
        proposer.accepted(len(new))
        stats, times = self.stats, main.stats
        stats.steps, stats.proposed = stats.steps + 1, stats.proposed + len(proposed)
        stats.accepted, stats.tokens = stats.accepted + accepted, stats.tokens + len(new)
        times.decode_tokens += len(new)
        times.decode_seconds += time.perf_counter() - start
        return new
