"""Which of the choices that rounding leaves open a compiled program has taken, found by its logits.

A row whose choice is open may be far from the reference and right. It is right when the graph in float32 gives these
logits with one of the choices that the row may have taken: they are searched, choice by choice, in the order of
computing. The search takes one choice after the other, so that several at once may escape it: a row that is left open
may be as far off as one other choice of its own moves it, and no further.
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

SWEEPS = 8  # over the choices of a step: one that follows from another is found in a later one
Beyond = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Explained:
    """The rows of a feed in float32, with the choices that explain them best, and the number of choices of its step.

    `reach` is float64 [R]: the largest distance, RMS, that one other choice of a row gave. 0 where it has only one:
    nothing escapes that search.
    """

    logits: np.ndarray
    reach: np.ndarray
    choices: int


class Explaining:
    """Follows the steps of a session by two graphs: one in float32, one that rounds as the program does."""

    def __init__(self, exact: Eager, rounding: Eager) -> None:
        self.exact, self.rounding = exact, rounding
        self.seen: dict[int, list[np.ndarray]] = {}  # of each choice, what rounding moves its scores, step by step

    def explain(self, feed: Feed, beyond: Beyond) -> Explained:
        """What float32 gives of a feed. `beyond` says of logits like the feed's which rows are too far from the feed's.

        The steps before it must have been followed; the caches then hold what the choices found give.
        """
        before, rounded_before = self.exact.copy_of_states(), self.rounding.copy_of_states()
        with Choosing() as low:
            self.rounding(feed.step, decode=feed.decode)
        plan = first = Plan.of(low.choices, len(feed.step["tokens"]))
        logits, choices = self._run(feed, plan)
        rows = feed.end - feed.first
        within = [self._within(index, gap) for index, gap in enumerate(moved(low.choices, choices, rows))]
        skipped = rows - len(logits)  # rows of which the session gives no logits
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
        """How close two scores of a row are that rounding may exchange; see `OPEN`."""
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
        """For each row the swap in one choice that brings float32 nearest to the feed's logits, if any does.

        `reach` takes in how far each moves its row.
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
    """The choices of a run of the plan, all of them held."""
    return Plan.of(choices, len(plan.held))


def rows_of(feed: Feed, graph: Eager) -> np.ndarray:
    """The rows of a feed's step, as a graph computes them; it has taken in the steps before."""
    whole = graph(feed.step, decode=feed.decode).float().numpy()
    count = feed.end - feed.first
    return whole[count - len(feed.logits) : count]
