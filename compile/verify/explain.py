"""Infers from logits the choices of a compiled program (experts, keys) that rounding can change.

A row with such an open choice may differ from the reference and be correct. It is correct if the graph in float32
computes these logits with one of the possible choices, which are tried one by one in the order of computation. The
search may miss a combination of several choices. So an unexplained row may differ by the largest effect of a single
other choice on it.
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

SWEEPS = 8  # passes over the choices of a step: a choice that depends on another is found in a later pass
Beyond = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Explained:
    """The logits of a feed in float32, [R, V], with the choices that explain them best.

    `reach`, float64 [R]: the largest distance (RMS) that another choice moves a row. It is 0 for a row with a single
    choice, which the search covers completely. `choices`: the number of choices of the step.
    """

    logits: np.ndarray
    reach: np.ndarray
    choices: int


class Explaining:
    """Repeats the steps of a session with two graphs: one in float32, and one that rounds as the program does."""

    def __init__(self, exact: Eager, rounding: Eager) -> None:
        self.exact, self.rounding = exact, rounding
        self.seen: dict[int, list[np.ndarray]] = {}  # by choice, the effect of rounding on its scores in each step

    def explain(self, feed: Feed, beyond: Beyond) -> Explained:
        """The logits of a feed in float32. `beyond` maps logits [R, V] to a mask [R] of rows that differ too much.

        The earlier steps must have been explained before. The caches then have the values for the choices found.
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
                    plan = _with_all_held(plan, choices).swapped(index, best)
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
        """The distance up to which rounding may swap two scores, for each row; see `OPEN`. None without a gap."""
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
        """For each row, the swap in one choice that moves the float32 logits closest to the feed's, if any does.

        `reach` is updated with the distance that each swap moves its row.
        """
        skipped = feed.end - feed.first - len(logits)
        error, best = rms(feed.logits - logits), dict[int, Swap]()
        for at in range(max(map(len, options.values()), default=0)):
            tried = {row: some[at] for row, some in options.items() if at < len(some)}
            self.exact.restore(before)
            given = self._run(feed, plan.swapped(index, tried))[0]
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
    """A plan in which all choices of a run are fixed."""
    return Plan.of(choices, len(plan.held))


def rows_of(feed: Feed, graph: Eager) -> np.ndarray:
    """The logits of a feed, float32 [R, V], computed by a graph that has processed the earlier steps."""
    whole = graph(feed.step, decode=feed.decode).float().numpy()
    count = feed.end - feed.first
    return whole[count - len(feed.logits) : count]
