"""The draft of a batch: it proposes tokens for all its requests, and one step of the main model checks them.

A step of the batch that decodes has two parts: the draft decodes up to K tokens of each request, all requests at a
time, and one prefill of the main model has the last token of each request and its proposals. The draft has a cache of
its own. Before a step it processes tokens that it lacks, in at most one prefill: so no prompt keeps others from
decoding. A request that the draft cannot follow, or not yet, has one token in the step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from bringup.arguments import integer
from bringup.arguments import path as as_path
from bringup.compile.bundle.folder import read_manifest
from bringup.compile.runtime.acceptance import Proposal
from bringup.compile.runtime.drawn import Drawn, accept, check, draw_from, failing, sampler_of, score_prompt, shifted
from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.opening import Opened, open_bundle
from bringup.compile.runtime.pair import check_batches
from bringup.compile.runtime.parts import Cached, Part
from bringup.compile.runtime.proposals import DECODED
from bringup.compile.runtime.sampling import check_logits
from bringup.compile.runtime.scheduler import Job, Planned
from bringup.compile.runtime.speculative import DRAFT_TOKENS
from bringup.compile.runtime.stats import DraftStats


@dataclass(slots=True)
class Turn:
    """The tokens of a job that a step checks: the last one, and up to `count` proposals."""

    planned: Planned
    count: int
    proposed: list[Proposal] = field(default_factory=list[Proposal])

    @property
    def job(self) -> Job:
        return self.planned.job

    def part(self) -> Part:
        """The part of the main model's step. Without proposals it is that of a step without a draft."""
        if not self.proposed:
            return self.planned.part()
        tokens = [self.job.tokens[-1], *(each.token for each in self.proposed)]
        return Part(self.planned.cached, tokens, len(self.job.tokens) + len(self.proposed), certain=1)

    def part_of_draft(self, cached: Cached, recurrent: bool) -> Part:
        """The first token of the sequence, with its proposals, that the draft has not processed.

        With recurrent states: all such tokens of the sequence, then all proposals, which these never contain.
        """
        at, total = len(cached.tokens), len(self.job.tokens)
        following = [*self.job.tokens[at:], *(each.token for each in self.proposed[max(at - total, 0) :])]
        tokens = following if recurrent else following[:1]
        return Part(cached, tokens, max(at + len(tokens), total), certain=None if at < total else 0)


class Drafts:
    """A draft of the main model of a batch, with at most `most` proposals for each request in a step.

    Raises BU049 if the two bundles do not fit. `stats` are the sums over all requests.
    """

    def __init__(self, main: Opened, draft: Opened, most: int | None = None) -> None:
        self.most = integer("draft_tokens", DRAFT_TOKENS if most is None else most, minimum=1)
        check_batches(main, draft, self.most)
        self.manifest = draft.manifest
        self.engine = Engine(draft.manifest, draft.executor, draft.interface, share_blocks=True)
        self._few = self.most + 1 if self.engine.recurrent else DECODED  # tokens of a request that `_propose` processes
        self.stats = DraftStats()

    def count(self, job: Job, tokens: int, *, proposed: int = 0, accepted: int = 0) -> None:
        """Counts a step of a request with so many new tokens."""
        for stats in (job.draft_stats, self.stats):
            stats.steps, stats.tokens = stats.steps + 1, stats.tokens + tokens
            stats.proposed, stats.accepted = stats.proposed + proposed, stats.accepted + accepted

    # --- the sequences of the draft

    def follow(self, jobs: Sequence[Job]) -> None:
        """Processes tokens of requests that the draft lacks, oldest request first, in at most one step of the draft."""
        behind = [job for job in jobs if self._has(job) and _missing(job) > self._few]
        behind = behind[: self.engine.max_prefill_sequences]
        if not behind:
            return
        left = self.engine.prefill_size(sum(_missing(job) - 1 for job in behind))
        parts: list[Part] = []
        for job in behind:
            count = min(_missing(job) - 1, left)
            if count and job.draft and self._reserve(job, count):
                at = len(job.draft.tokens)
                parts.append(Part(job.draft, job.tokens[at : at + count], len(job.tokens)))
                left -= count
        if parts:
            self.engine.prefill(parts)

    def _has(self, job: Job) -> bool:
        """Whether the draft has a sequence for a request, which it opens if there is room. It ends one that has become
        longer than the draft's context, or whose last token is next."""
        engine, total = self.engine, len(job.tokens)
        if _left(job) < 2 or engine.uniform(total) < 1:
            self._leave(job)
            return False
        is_new, cached = job.draft is None, job.draft or engine.open()
        if cached is None:
            return False
        if cached.outgrown != (outgrown := engine.outgrown(total)):
            engine.rewind(cached, 0)
            cached.outgrown = outgrown
        engine.share(cached, job.tokens)
        if is_new and engine.missing(cached, total) > engine.pool.num_free:
            engine.close(cached)
            return False
        job.draft = cached
        return True

    def _reserve(self, job: Job, count: int) -> bool:
        """Reserves blocks for tokens of a request. If too few are free, its sequence ends."""
        if job.draft and self.engine.reserve(job.draft, count):
            return True
        self._leave(job)
        return False

    def _leave(self, job: Job) -> None:
        if job.draft:
            self.engine.close(job.draft)
            job.draft = None

    # --- steps

    def run(self, main: Engine, planned: Sequence[Planned], start: float) -> list[Drawn] | None:
        """Proposes and checks tokens of requests that decode; None, and nothing is processed, without proposals.

        `start` is when the step began. If it fails, the generators of all requests are as before.
        """
        turns = [Turn(each, self._count_of(main, each)) for each in planned]
        if not any(turn.count for turn in turns):
            return None
        with ExitStack() as failed:
            for generator in (turn.job.random.bit_generator for turn in turns if turn.job.request.temperature):
                failed.callback(setattr, generator, "state", generator.state)
            self._propose(turns)
            results = main.prefill([turn.part() for turn in turns])
            for turn, found in zip(turns, results, strict=True):
                _check(turn, found.logits)
            seconds = time.perf_counter() - start
            new = [
                self._accepted(main, turn, found.logits, seconds) for turn, found in zip(turns, results, strict=True)
            ]
            failed.pop_all()
        return [each for drawn in new for each in drawn]

    def _count_of(self, main: Engine, planned: Planned) -> int:
        """The number of proposals for a request, for which the main model has blocks. They are never those of other
        requests."""
        job, cached, total = planned.job, planned.cached, len(planned.job.tokens)
        is_last = len(cached.tokens) + 1 == total > len(job.request.tokens)
        if not (is_last and job.draft) or _missing(job) > self._few:
            return 0
        count = max(min(self.most, _left(job) - 1, main.uniform(total), self.engine.uniform(total)), 0)
        return count if main.reserve(cached, 1 + count) else 0

    def _propose(self, turns: Sequence[Turn]) -> None:
        """Decodes with the draft until each turn has its proposals. One without blocks has fewer."""
        while active := [turn for turn in turns if len(turn.proposed) < turn.count]:
            parts: list[Part] = []
            for turn in active:
                part = turn.job.draft and turn.part_of_draft(turn.job.draft, self.engine.recurrent)
                if part and self._reserve(turn.job, len(part.tokens)):
                    parts.append(part)
                else:
                    turn.count = 0
            active = [turn for turn in active if turn.count]
            for turn, found in zip(active, self.engine.decode(parts) if parts else [], strict=True):
                job = turn.job
                if job.draft and len(job.draft.tokens) >= len(job.tokens):
                    if self.engine.recurrent:
                        self.engine.rewind(job.draft, len(job.tokens))
                    drawn = [each.token for each in turn.proposed]
                    with failing(job):
                        check_logits(found.logits[-1], f" of the draft of request {job.id}")
                    turn.proposed.append(sampler_of(job).propose(shifted(job, found.logits[-1], drawn)))

    def _accepted(self, main: Engine, turn: Turn, logits_RV: np.ndarray, seconds: float) -> list[Drawn]:
        """The new tokens of a turn. Both models then have all tokens but the last of them."""
        planned, job, proposed = turn.planned, turn.job, turn.proposed
        if not proposed:
            main.rewind(planned.cached, len(planned.cached.tokens))  # releases blocks that proposals would have used
            score_prompt(planned, logits_RV)
            if planned.add(seconds):
                self.count(job, 1)
            return [draw_from(job, logits_RV[-1])] if planned.done else []
        new, accepted = accept(job, logits_RV, proposed)
        total = len(job.tokens) - 1 + len(new)
        main.settle(planned.cached, total, total)
        if job.draft:
            self.engine.settle(job.draft, min(total, len(job.draft.tokens)), total)
        job.stats.decode_tokens += len(new)
        job.stats.decode_seconds += seconds
        self.count(job, len(new), proposed=len(proposed), accepted=accepted)
        return new


def _check(turn: Turn, logits_RV: np.ndarray) -> None:
    """Raises RequestFailed for logits that are not finite."""
    if not turn.proposed:
        check(turn.planned, logits_RV)
        return
    with failing(turn.job):
        for row in logits_RV:
            check_logits(row, f" of request {turn.job.id}")


def _missing(job: Job) -> int:
    """The number of a request's tokens that the draft has not processed."""
    return len(job.tokens) - len(job.draft.tokens if job.draft else ())


def _left(job: Job) -> int:
    """The number of tokens that a request may still have."""
    return job.request.max_new_tokens - (len(job.tokens) - len(job.request.tokens))


def open_drafts(main: Opened, bundle: str | PathLike[str], draft_tokens: int | None) -> Drafts:
    """Opens the bundle of a draft, on the device of the main model if its target is the same."""
    same = read_manifest(Path(as_path("draft", bundle)))["target"] == main.manifest["target"]
    return Drafts(main, open_bundle(bundle, main.device if same else None), draft_tokens)
