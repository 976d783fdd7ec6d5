"""Finds an operation of a 16-bit program with a wrong factor, from the logits of a session.

The tolerance of a row of logits is several rounding errors, so it does not reveal an operation that is wrong by 1 %.
But such an error moves all logits in one direction. The graph in float32 determines this direction: the logits with a
slightly larger result of that operation, minus those without. The effect of rounding in that direction averages out
over rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.scaling import STEP, Listing, Operation, Scaling, staged
from bringup.compile.parity.feeds import Feed, in_fewer_steps
from bringup.compile.parity.rounding import ROW, rms
from bringup.compile.parity.scale import LEAST, ROUNDOFF, Scale, scale_along
from bringup.compile.program.program import Entry, Executor
from bringup.compile.verify.evidence import Evidence
from bringup.compile.verify.explain import rows_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scaled:
    """An operation of an entry point, in the calls of one function of the program, and its measured factor."""

    entry: str
    function: str
    operation: Operation
    scale: Scale

    @property
    def text(self) -> str:
        """The text for a message."""
        found = self.scale
        return (
            f"the logits are as if `{self.operation.target}` in `{self.function}`, or an operation near it, gave "
            f"{found.factor:+.2%} (standard error {found.error:.2%}), where rounding explains {found.explained:.2%}"
        )


class Scales:
    """Compares a session's logits with the graph run by torch in the session's own dtype, and in float32."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def worst(self, entries: Sequence[Entry], feeds: Sequence[Feed]) -> Iterator[Scaled]:
        """For each entry point, the operation whose factor is least explained by rounding.

        Yields nothing if the program does not round to 16 bits.
        """
        if self.evidence.dtype not in ROUNDOFF:
            return
        for entry in entries:
            if found := list(self._of(entry, feeds)):
                yield max(found, key=lambda each: each.scale.excess)

    def departing(self, entries: Sequence[Entry], feeds: Sequence[Feed]) -> list[str]:
        """The names of the entry points with an operation whose mean factor is wrong."""
        return [found.entry for found in self.worst(entries, feeds) if found.scale.excess > 1]

    def _of(self, entry: Entry, feeds: Sequence[Feed]) -> Iterator[Scaled]:
        """Each operation with a distinct effect on the logits. Yields nothing if the steps have too few rows."""
        chosen = [feed for feed in feeds if feed.entry == entry.name]
        if sum(len(feed.logits) for feed in chosen) < LEAST:
            return
        exact, dtype = self.evidence.graph, self.evidence.dtype
        fewer = list(in_fewer_steps(feeds, self.evidence.sizes.chunk))  # the graph is run once for each operation
        steps = _Steps(exact, fewer, entry.name)
        right, low = steps.rows(), _Steps(self.evidence.rounding_graph, feeds, entry.name).rows()
        ours = np.concatenate([feed.logits for feed in chosen])
        rounded, gap = low - right, ours - low
        noise = rms(rounded)
        size = np.maximum(noise, np.median(noise))
        used = (rms(gap) <= ROW * size) & (size > 0)  # the other rows have made another choice of experts or keys

        def weighed(rows: np.ndarray) -> np.ndarray:
            return rows[used] / size[used, None]

        functions: dict[str, list[int]] = {}
        for stage, call in enumerate(entry.calls):
            functions.setdefault(call.function, []).append(stage)
        listed = _listed(exact, next(feed for feed in fewer if feed.entry == entry.name))
        for function, stages in functions.items():
            for operation in listed:
                if operation.stage != stages[0]:
                    continue
                moved = (steps.rows(stages, operation.index) - right) / STEP
                scale = scale_along(weighed(gap), weighed(moved), weighed(rounded), dtype)
                yield Scaled(entry.name, function, operation, scale)


def taken_by(executor: Executor, feeds: Sequence[Feed]) -> Iterator[Feed]:
    """The same feeds, with the logits of another executor."""
    run = -1
    for feed in feeds:
        if feed.run != run:
            run = feed.run
            executor.reset()
        logits = executor.step(feed.entry, feed.step)["logits"][: len(feed.logits)]
        yield replace(feed, logits=logits.astype(np.float32))


def _listed(graph: Eager, feed: Feed) -> list[Operation]:
    listing = Listing()
    with staged(graph, listing):
        graph(feed.step, decode=feed.decode)
    return listing.distinct


class _Steps:
    """The steps of one entry point, which a graph can repeat. The earlier steps of their runs are computed once."""

    def __init__(self, graph: Eager, feeds: Sequence[Feed], entry: str) -> None:
        self.graph, self.entry = graph, entry
        chosen = {feed.run for feed in feeds if feed.entry == entry}
        self.runs: list[tuple[Mapping[str, Tensor], list[Feed]]] = []
        for run in sorted(chosen):
            steps = [feed for feed in feeds if feed.run == run]
            own = [index for index, feed in enumerate(steps) if feed.entry == entry]
            graph.reset()
            for feed in steps[: own[0]]:
                graph(feed.step, decode=feed.decode)
            self.runs.append((graph.copy_of_states(), steps[own[0] : own[-1] + 1]))

    def rows(self, stages: Collection[int] = (), index: int = -1) -> np.ndarray:
        """The logits of these steps, float32 [R, V], with a slightly larger result of operation `index` of `stages`."""
        found: list[np.ndarray] = []
        for before, steps in self.runs:
            self.graph.restore(before)
            for feed in steps:
                if feed.entry != self.entry:
                    self.graph(feed.step, decode=feed.decode)
                    continue
                with staged(self.graph, Scaling(stages, index)):
                    found.append(rows_of(feed, self.graph))
        return np.concatenate(found)
