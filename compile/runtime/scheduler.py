"""Selects the requests of a batch that run, and their tokens for the next step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.lora.loras import Loras
from bringup.compile.runtime.parts import Cached, Part
from bringup.compile.runtime.request import CheckedRequest
from bringup.compile.runtime.scores import Score
from bringup.compile.runtime.stats import DraftStats, Stats
from bringup.graphs.core.step import BLOCK

AGE = attrgetter("id")


@dataclass(slots=True, eq=False)
class Job:
    """A request that is not finished: its prompt and the tokens after it. `cached` is None while it waits.

    `lora` is the number of its LoRA, which it pins until it ends. `prompt_scores` are by position. `draft` is its
    sequence in the draft's cache, if that has one.
    """

    id: int
    request: CheckedRequest
    tokens: list[int]
    random: np.random.Generator
    stats: Stats
    lora: int | None = None
    cached: Cached | None = None
    draft: Cached | None = None
    draft_stats: DraftStats = field(default_factory=DraftStats)
    prompt_scores: dict[int, Score] = field(default_factory=dict[int, Score])

    @property
    def scores_prompt(self) -> bool:
        """Whether tokens of the prompt are not yet scored: the logits of each previous token are needed."""
        return self.request.prompt_logprobs and len(self.prompt_scores) < len(self.request.tokens) - 1


@dataclass(slots=True)
class Planned:
    """A job of which a step processes `count` tokens, as part of a prompt of `total`."""

    job: Job
    cached: Cached
    count: int
    total: int

    def part(self) -> Part:
        first = len(self.cached.tokens)
        return Part(self.cached, self.job.tokens[first : first + self.count], self.total)

    @property
    def done(self) -> bool:
        """Whether all tokens of the job are processed, so that the last logits determine its next token."""
        return len(self.cached.tokens) == len(self.job.tokens)

    def add(self, seconds: float) -> bool:
        """Adds a step to the stats of its request: to prefill until the first new token, to decode from then on.
        Returns whether it is a complete step of decode."""
        stats = self.job.stats
        if len(self.job.tokens) == len(self.job.request.tokens):
            stats.prefill_tokens += self.count
            stats.prefill_seconds += seconds
            return False
        stats.decode_tokens += self.done
        stats.decode_seconds += seconds
        return self.done


class Scheduler:
    """The requests of a batch, oldest first.

    A request is admitted if the cache has blocks for the tokens of all running requests, in the order in which they
    were added. When blocks run out, the youngest running request is preempted and waits: it is recomputed from its
    prompt and the tokens generated so far. Its sequence in the cache of `draft` ends with its own.
    """

    def __init__(self, engine: Engine, loras: Loras, draft: Engine | None = None) -> None:
        self.engine, self.loras, self.draft = engine, loras, draft
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.preemptions = 0
        self.shared_tokens = 0
        self.prefilled = False  # in the latest step

    def stop(self, job: Job) -> None:
        """Removes a request and frees its blocks."""
        if job.cached is None:
            self.waiting.remove(job)
        else:
            self.running.remove(job)
            self.engine.close(job.cached)
            self.loras.leave(job.request.lora)
            job.cached = None
        if self.draft and job.draft:
            self.draft.close(job.draft)
            job.draft = None

    def restart(self) -> None:
        """Makes all requests wait, with empty caches."""
        for job in self.running:
            self.loras.leave(job.request.lora)
        self.waiting = sorted((*self.waiting, *self.running), key=AGE)
        self.running = []
        for job in self.waiting:
            job.cached = job.draft = None
        self.engine.reset()
        if self.draft:
            self.draft.reset()

    def plan(self) -> list[Planned]:
        """The tokens of the next step; `prefilled` tells the kind of entry point. Empty if there is nothing to do.

        Prefill has priority, but not twice in a row while other requests could decode.
        """
        self._admit()
        for job in self.running:
            if job.cached:
                self.shared_tokens += self._share(job, job.cached)
        planned = [self._next(job, job.cached) for job in self.running if job.cached]
        decodes = [each for each in planned if each.count == 1 and each.cached.tokens]
        prompts = self._packed([each for each in planned if each.count > 1 or not each.cached.tokens])
        for by_prefill in (False, True) if self.prefilled else (True, False):
            if reserved := self._reserve(prompts if by_prefill else decodes):
                self.prefilled = by_prefill
                return reserved
        return []

    def _admit(self) -> None:
        """Starts requests, oldest first, while there are rows, slots for LoRAs, and blocks for all started requests."""
        while self.waiting and self.loras.has_slot(self.waiting[0].request.lora) and (cached := self.engine.open()):
            job = self.waiting[0]
            cached.lora = job.lora
            shared = self._share(job, cached)
            begun = [(cached, job), *((each.cached, each) for each in self.running if each.cached)]
            if sum(self.engine.missing(held, len(each.tokens) + 1) for held, each in begun) > self.engine.pool.num_free:
                self.engine.close(cached)
                return
            cached.slot = self.loras.place(job.request.lora)
            self.shared_tokens += shared
            job.cached = cached
            self.running.append(self.waiting.pop(0))

    def _share(self, job: Job, cached: Cached) -> int:
        """Shares the tokens that other requests have computed, and returns their number. Recomputes a sequence that has
        outgrown its states."""
        outgrown = self.engine.outgrown(len(job.tokens))
        if outgrown != cached.outgrown:
            self.engine.rewind(cached, 0)
            cached.outgrown = outgrown
        before = len(cached.tokens)
        if not job.scores_prompt:
            self.engine.share(cached, job.tokens)
        return len(cached.tokens) - before

    def _next(self, job: Job, cached: Cached) -> Planned:
        """All tokens that a step could process at once.

        If states depend on the length of the sequence, these are the tokens that were processed at once originally.
        """
        taken, end = len(cached.tokens), len(job.tokens)
        if self.engine.varies(end):
            end = max(len(job.request.tokens), taken + 1)
        one_by_one = job.scores_prompt and not self.engine.interface.all_logits
        return Planned(job, cached, 1 if one_by_one else end - taken, end)

    def _packed(self, prompts: Sequence[Planned]) -> list[Planned]:
        """The next parts of prompts, as many as fit one entry point.

        A prompt whose next block is being computed for an older one is skipped: it can share that block.
        """
        if prompts and self._fills_an_entry(prompts[0]):
            return [prompts[0]]
        computed: set[bytes] = set()
        chosen: list[Planned] = []
        for each in prompts:
            digest = self.engine.next_digest(each.cached, each.job.tokens)
            if digest is None or digest not in computed or len(each.cached.tokens) > len(each.cached.digests) * BLOCK:
                chosen.append(each)
            if digest:
                computed.add(digest)
            if len(chosen) == self.engine.max_prefill_sequences:
                break
        if not chosen:
            return []
        left = self.engine.prefill_size(sum(each.count for each in chosen))
        for each in chosen:
            each.count = min(each.count, left)
            left -= each.count
        return [each for each in chosen if each.count]

    def _fills_an_entry(self, first: Planned) -> bool:
        """Whether a prompt fills at least half of the longest entry: an entry for several sequences computes the scores
        of all tokens with the keys of each. Its count is then the length of the entry."""
        size = self.engine.prefill_size(first.count)
        if size < max(self.engine.prefill_sizes) or 2 * first.count < size:
            return False
        first.count = min(first.count, size)
        return True

    def _reserve(self, planned: Sequence[Planned]) -> list[Planned]:
        """The jobs that have blocks for their tokens: the youngest running ones release theirs for older ones."""
        for each in planned:
            while each.job.cached and not self.engine.reserve(each.cached, each.count):
                self.preemptions += 1
                youngest = self.running[-1]
                self.stop(youngest)
                insort(self.waiting, youngest, key=AGE)
        return [each for each in planned if each.job.cached]
