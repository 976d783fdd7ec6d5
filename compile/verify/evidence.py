"""What a verification knows of its logits: the reference's, how far rounding moves them, and the graph's own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from bringup.compile.bisect.choices import Choosing, undecided
from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, in_dtype
from bringup.compile.packed_job import pack_job
from bringup.compile.parity.feeds import Feed
from bringup.compile.parity.parity import Difference
from bringup.compile.parity.rounding import UNIT, Bound, bound_of, judge, rms
from bringup.graphs.core.module import State
from bringup.graphs.core.options import CACHE_DTYPES
from bringup.graphs.core.step import CacheSizes
from bringup.spec import DTYPES

GRAPH = "graph in float32"  # the phase that holds the graph's own logits to the reference's, before any rounding


def exact(job: Job) -> Job:
    """The job with a graph in float32, its caches too: the same modules, rules and tensors."""
    graph = deepcopy(job.graph)
    for _, leaf in graph.leaves(State):
        if leaf.declared_dtype in CACHE_DTYPES:
            leaf.declared_dtype = None
    return in_dtype(replace(job, graph=graph), "float32")


def rounds(job: Job) -> bool:
    """Whether a job's program computes, or caches what attention keeps, in less than float32."""
    options = job.graph.options
    return job.graph.dtype != "float32" or job.graph.cache_dtype != "float32" or options.activations is not None


def rounding(job: Job) -> Job:
    """The job that rounds as the program does: with packed weights where activations are rounded for these."""
    return pack_job(job).job if job.graph.options.activations else job


def coarsest(job: Job) -> str:
    """Of the dtypes that a job's program computes and caches in, the one with the fewest bits."""
    return min(job.graph.cache_dtype, job.graph.dtype, key=lambda name: (DTYPES[name].bits, -UNIT.get(name, 1.0)))


class Referring(Protocol):
    """Who is right: transformers, or a file. `dtype` is what its numbers were computed in, "" when unsaid."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def logits(self, tokens: list[int]) -> np.ndarray | None: ...
    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]: ...


class Evidence:
    """The bound of every row of logits, and what stays within it.

    The feeds are those of a program whose caches have `sizes`. `rounded` are the reference's logits in
    the job's dtypes, where these round; without them the graph's own rounding is measured.
    """

    def __init__(
        self,
        job: Job,
        sizes: CacheSizes,
        reference: Referring,
        rounded: np.ndarray | None,
        tokens: list[int],
        feeds: Sequence[Feed],
    ) -> None:
        self.job, self.sizes, self.tokens, self.feeds = job, sizes, tokens, feeds
        self.dtype, self.rounds = job.graph.dtype, rounds(job)
        self.is_exact = self.dtype == "float32" or reference.dtype == "float32"
        self.graph = Eager(exact(job), sizes.context, sizes)
        self.logits = reference.logits(tokens)
        self.bound = self._bound(rounded)
        self.median = 0.0 if self.bound.noise is None else float(np.median(self.bound.noise))

    @cached_property
    def rounding_graph(self) -> Eager:
        """The graph in the job's own dtypes and activations."""
        return Eager(rounding(self.job), self.sizes.context, self.sizes) if self.rounds else self.graph

    def _bound(self, rounded: np.ndarray | None) -> Bound:
        wanted = self._whole(self.graph) if self.logits is None else self.logits
        if not self.rounds:
            return Bound(wanted)
        if rounded is not None:
            return bound_of(wanted, rounded, self.dtype)
        own = wanted if self.logits is None else self._whole(self.graph)
        noise = bound_of(own, self._whole(self.rounding_graph), self.dtype, 1.0 if self.is_exact else 2**0.5)
        return Bound(wanted, noise.noise, noise.peak, noise.share)

    def _whole(self, graph: Eager) -> np.ndarray:
        return graph.whole(self.tokens)

    @cached_property
    def of_graph(self) -> list[np.ndarray]:
        """The rows of each feed, as the graph computes them in float32."""
        return [rows_of(feed, self.graph) for feed in self.feeds]

    def exact(self, index: int | None = None) -> Difference:
        """The graph's own logits in float32 beside the reference's, of one feed or of all."""
        some = slice(None) if index is None else slice(index, index + 1)
        rows = np.concatenate([rows_at(feed) for feed in self.feeds[some]])
        return judge(GRAPH, np.concatenate(self.of_graph[some]), Bound(self.bound.wanted).at(rows), 0.0)

    def phase(self, name: str) -> Difference:
        """What the session gave in the steps of an entry."""
        feeds = [feed for feed in self.feeds if feed.entry == name]
        found = self.of(name, feeds)
        if found.ok or not self.rounds or not self.is_proven:
            return found
        return self._excusing_choices(name, feeds) or found

    def of(self, name: str, feeds: Sequence[Feed]) -> Difference:
        """What the session gave in these steps, whatever was chosen."""
        rows = np.concatenate([rows_at(feed) for feed in feeds])
        return judge(name, np.concatenate([feed.logits for feed in feeds]), self.bound.at(rows), self.median)

    @cached_property
    def is_proven(self) -> bool:
        """Whether the graph's logits in float32 are known to be the reference's."""
        return self.is_exact and self.logits is not None and self.exact().ok

    def _excusing_choices(self, name: str, feeds: Sequence[Feed]) -> Difference | None:
        """The same, where float32 chooses as 16 bits do; None when there is nothing to choose. See `choices`.

        A row that rounding leaves undecided may be chosen otherwise once more, by the compiled program.
        """
        chosen = [found for feed, found in zip(self.feeds, self._chosen, strict=True) if feed.entry == name]
        if not any(found.choices for found in chosen):
            return None
        rows = np.concatenate([rows_at(feed) for feed in feeds])
        ours, bound = np.concatenate([feed.logits for feed in feeds]), self.bound.at(rows)
        other = np.concatenate([found.logits for found in chosen])
        nearer = rms(ours - other) < rms(ours - bound.wanted)
        bound = replace(bound, wanted=np.where(nearer[:, None], other, bound.wanted))
        beyond = bound.rows_beyond(ours, self.median) > 1
        excused = np.flatnonzero(beyond & np.concatenate([found.undecided for found in chosen]))
        return judge(name, ours, bound, self.median, excused.tolist())

    @cached_property
    def _chosen(self) -> list[_Chosen]:
        done: list[_Chosen] = []
        for feed in self.feeds:
            with Choosing() as low:
                self.rounding_graph(feed.step, decode=feed.decode)
            with Choosing(low.choices) as high:
                exact = rows_of(feed, self.graph)
            close = undecided(low.choices, high.choices, feed.end - feed.first)
            done.append(_Chosen(exact, close[len(close) - len(exact) :], len(high.choices)))
        return done


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of a feed in float32 with the choices of 16 bits, which are undecided, and the number of choices."""

    logits: np.ndarray
    undecided: np.ndarray
    choices: int


def rows_of(feed: Feed, graph: Eager) -> np.ndarray:
    """The rows of a feed's step, as a graph computes them; it has taken in the steps before."""
    whole = graph(feed.step, decode=feed.decode).float().numpy()
    count = feed.end - feed.first
    return whole[count - len(feed.logits) : count]


def rows_at(feed: Feed) -> np.ndarray:
    """Which rows of the sequence a feed's logits are."""
    return np.arange(feed.end - len(feed.logits), feed.end)
