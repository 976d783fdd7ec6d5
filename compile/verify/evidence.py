"""Evidence: the logits of the reference and of the graph, and the tolerance that follows from rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from bringup.compile.bisect.eager import Eager
from bringup.compile.job import Job, in_dtype
from bringup.compile.packed_job import pack_job
from bringup.compile.parity.feeds import Feed
from bringup.compile.parity.parity import Difference
from bringup.compile.parity.rounding import UNIT, Bound, bound_of, judge
from bringup.compile.verify.explain import Explained, Explaining, rows_of
from bringup.graphs.core.module import State
from bringup.graphs.core.options import CACHE_DTYPES
from bringup.graphs.core.step import CacheSizes
from bringup.spec import DTYPES

GRAPH = "graph in float32"  # the phase that compares the graph, without rounding, with the reference


def exact(job: Job) -> Job:
    """The job with its graph and its caches in float32; modules, rules and tensors are the same."""
    graph = deepcopy(job.graph)
    for _, leaf in graph.leaves(State):
        if leaf.declared_dtype in CACHE_DTYPES:
            leaf.declared_dtype = None
    return in_dtype(replace(job, graph=graph), "float32")


def rounds(job: Job) -> bool:
    """Whether a job's program computes, or caches keys and values, with less precision than float32."""
    options = job.graph.options
    return job.graph.dtype != "float32" or job.graph.cache_dtype != "float32" or options.activations is not None


def rounding(job: Job) -> Job:
    """The job that rounds as the program does: with packed weights if activations are quantised for them."""
    return pack_job(job).job if job.graph.options.activations else job


def coarsest(job: Job) -> str:
    """The dtype with the fewest bits among those that a job's program computes and caches in."""
    return min(job.graph.cache_dtype, job.graph.dtype, key=lambda name: (DTYPES[name].bits, -UNIT.get(name, 1.0)))


class Referring(Protocol):
    """The reference: transformers, or a file. `dtype` is the one of its computation, "" if unknown."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def logits(self, tokens: list[int]) -> np.ndarray | None: ...
    def activations(self, tokens: list[int]) -> dict[str, np.ndarray]: ...


class Evidence:
    """The tolerance of every row of logits, and comparisons of the session's rows with the reference.

    `feeds` are the steps of a program whose caches have `sizes`. `rounded`: the reference's logits [N, V] in the job's
    dtypes, for 16 bits; if None, the rounding of the graph itself is measured.
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
        """The logits of each feed, float32 [R, V], as the graph computes them."""
        return [rows_of(feed, self.graph) for feed in self.feeds]

    def exact(self, index: int | None = None) -> Difference:
        """The difference of the graph's logits in float32 from the reference, for one feed or for all."""
        some = slice(None) if index is None else slice(index, index + 1)
        rows = np.concatenate([rows_at(feed) for feed in self.feeds[some]])
        return judge(GRAPH, np.concatenate(self.of_graph[some]), Bound(self.bound.wanted).at(rows), 0.0)

    def phase(self, name: str) -> Difference:
        """The difference of the session's logits from the reference, in the steps of the entry point `name`."""
        return self.of(name, [feed for feed in self.feeds if feed.entry == name])

    def of(self, name: str, feeds: Sequence[Feed]) -> Difference:
        """The difference of the session's logits from the reference, in these steps.

        If it exceeds the tolerance, the graph in float32 with the choices of the session is a second reference.
        """
        rows = np.concatenate([rows_at(feed) for feed in feeds])
        ours, bound = np.concatenate([feed.logits for feed in feeds]), self.bound.at(rows)
        found = judge(name, ours, bound, self.median)
        if found.ok or not self.rounds or not self.is_proven:
            return found
        explained = [self._explained[self.feeds.index(feed)] for feed in feeds]
        if not any(each.choices for each in explained):
            return found
        logits, reach = (np.concatenate([getattr(e, what) for e in explained]) for what in ("logits", "reach"))
        return judge(name, ours, bound, self.median, logits, reach)

    @cached_property
    def is_proven(self) -> bool:
        """Whether the graph's logits in float32 are known to equal the reference's."""
        return self.is_exact and self.logits is not None and self.exact().ok

    @cached_property
    def _explained(self) -> list[Explained]:
        """For each feed, the logits in float32 with the choices of the session."""
        explaining = Explaining(self.graph, self.rounding_graph)

        def beyond(feed: Feed) -> Callable[[np.ndarray], np.ndarray]:
            bound = self.bound.at(rows_at(feed))
            return lambda logits: bound.nearer(feed.logits, logits).rows_beyond(feed.logits, self.median) > 1

        return [explaining.explain(feed, beyond(feed)) for feed in self.feeds]


def rows_at(feed: Feed) -> np.ndarray:
    """The positions in the sequence of a feed's rows of logits, int [R]."""
    return np.arange(feed.end - len(feed.logits), feed.end)
