"""Finds, by its logits, the choices of a compiled program that rounding leaves open (experts, keys).

A row with an open choice may differ from the reference and be right. It is right if the graph in float32 has these
logits with one of the possible choices, which are searched one by one in the order of computation. Several differing
choices at once may escape the search: an unexplained row may differ by as much as one other choice of its own moves it,
and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bringup.compile.bisect.choices import OPEN, Choice, Choosing, Plan, Swap, moved, swaps
from bringup.compile.bisect.eager import Eager
from bringup.compile.parity.feeds import Feed
from bringup.compile.parity.rounding import rms

if TYPE_CHECKING:
    from torch import Tensor

SWEEPS = 8  # over the choices of a step: one that follows from another is found in a later sweep
Beyond = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Explained:
    """The rows of a feed in float32, with the choices that explain them best, and the number of choices of its step.

    `reach` is float64 [R]: the largest distance, RMS, of another choice of a row. It is 0 for a row with a single
    choice: the search covers that completely.
    """

    logits: np.ndarray
    reach: np.ndarray
    choices: int


class Explaining:
    """Follows the steps of a session with two graphs: one in float32, one that rounds as the program does."""

    def __init__(self, exact: Eager, rounding: Eager) -> None:
        self.exact, self.rounding = exact, rounding
        self.seen: dict[int, list[np.ndarray]] = {}  # by choice, the effect of rounding on its scores in each step

    def explain(self, feed: Feed, beyond: Beyond) -> Explained:
        """The float32 logits of a feed. `beyond` returns which rows of logits like the feed's differ too much from it.

        All earlier steps must have been followed; the caches then have the values for the choices found.
        """
        before, rounded_before = self.exact.copy_of_states(), self.rounding.copy_of_states()
        with Choosing() as low:
            self.rounding(feed.step, decode=feed.decode)
        plan = first = Plan.of(low.choices, len(feed.step["tokens"]))
        logits, choices = self._run(feed, plan)
        rows = feed.end - feed.first
        within = [self._within(index, gap) for index, gap in enumerate(moved(low.choices, choices, rows))]
        skipped = rows - len(logits)  # rows without logits of the session
        reach, tried = np.zeros(len(logits)), np.zeros(len(logits), int)
        for sweep in range(SWEEPS if plan.choices else 0):
            start = plan
            for index, open_within in enumerate(within):
                if open_within is None:
                    continue
                off = np.flatnonzero(beyond(logits)) + skipped
                options = {row: swaps(choices[index], row, open_within[row]) for row in off.tolist()}
                if not sweep:
                    for row, some in options.items():
                        tried[row - skipped] += len(some)
                best = self._best(feed, before, _with_all_held(plan, choices), index, options, logits, reach)
                if best:
                    plan = _with_all_held(plan, choices).turned(index, best)
                    self.exact.restore(before)
                    logits, choices = self._run(feed, plan)
            if plan is start or not beyond(logits).any():
                break
        self.exact.restore(before)
        logits, choices = self._run(feed, plan)
        if plan is not first:
            self.rounding.restore(rounded_before)
            with Choosing(_with_all_held(plan, choices)):
                self.rounding(feed.step, decode=feed.decode)
        return Explained(logits, np.where(tried > 1, reach, 0.0), len(choices))

    def _within(self, index: int, gap: np.ndarray | None) -> np.ndarray | None:
        """The distance of two scores of a row up to which rounding may swap them; see `OPEN`."""
        if gap is None:
            return None
        self.seen.setdefault(index, []).append(gap)
        return OPEN * np.maximum(gap, np.median(np.concatenate(self.seen[index])))

    def _best(
        self,
        feed: Feed,
        before: Mapping[str, Tensor],
        plan: Plan,
        index: int,
        options: dict[int, list[Swap]],
        logits: np.ndarray,
        reach: np.ndarray,
    ) -> dict[int, Swap]:
        """For each row the swap in one choice that moves float32 closest to the feed's logits, if any does.

        `reach` is updated with the distance that each moves its row.
        """
        skipped = feed.end - feed.first - len(logits)
        error, best = rms(feed.logits - logits), dict[int, Swap]()
        for at in range(max(map(len, options.values()), default=0)):
            tried = {row: some[at] for row, some in options.items() if at < len(some)}
            self.exact.restore(before)
            given = self._run(feed, plan.turned(index, tried))[0]
            other, moved_by = rms(feed.logits - given), rms(given - logits)
            for row, swap in tried.items():
                reach[row - skipped] = max(reach[row - skipped], moved_by[row - skipped])
                if other[row - skipped] < error[row - skipped]:
                    error[row - skipped], best[row] = other[row - skipped], swap
        return best

    def _run(self, feed: Feed, plan: Plan) -> tuple[np.ndarray, list[Choice]]:
        with Choosing(plan) as choosing:
            logits = rows_of(feed, self.exact)
        return logits, choosing.choices


def _with_all_held(plan: Plan, choices: list[Choice]) -> Plan:
    """The choices of a run of the plan, all of them fixed."""
    return Plan.of(choices, len(plan.held))


def rows_of(feed: Feed, graph: Eager) -> np.ndarray:
    """The rows of a feed's step, as a graph computes them that has processed the earlier steps."""
    whole = graph(feed.step, decode=feed.decode).float().numpy()
    count = feed.end - feed.first
    return whole[count - len(feed.logits) : count]
