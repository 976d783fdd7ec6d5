"""Requests in one batch, with a draft and without: `python -m benchmarks.draft_batch BUNDLE DRAFT`.

Both batches are in one process, and take turns; each turn begins with empty caches. For 1, 4 and 8 requests at a time:
the ratio of the times, and the part of the time with a draft that is the main model's: what would remain with a draft
that costs nothing. Ratios are computed within a round, and the medians of all rounds are printed. Greedy tokens are
compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.batch import prompts


class Timed:
    """Measures the seconds of an executor's steps."""

    def __init__(self, executor: Any) -> None:
        self.seconds, self._step = 0.0, executor.step
        executor.step = self

    def __call__(self, entry: str, step: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            return self._step(entry, step)
        finally:
            self.seconds += time.perf_counter() - start


def turn(batch: Any, timed: Timed, texts: Sequence[list[int]], count: int) -> tuple[float, list[list[int]]]:
    """The seconds after the first token of all requests, and their tokens; `timed` has those of its steps."""
    import bringup

    batch._scheduler.restart()
    found: dict[int, list[int]] = {batch.add(bringup.Request(tokens, max_new_tokens=count)): [] for tokens in texts}
    start = time.perf_counter()
    begun = False
    while batch:
        for event in batch.step():
            found[event.id].append(event.token)
        if not begun and all(found.values()):
            timed.seconds, start, begun = 0.0, time.perf_counter(), True
    return time.perf_counter() - start, list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="compiled with --max-batch-size 8 --draft-tokens K")
    parser.add_argument("draft", help="compiled with --max-batch-size 8")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8])
    given = parser.parse_args()
    import bringup

    plain = bringup.load_batch(given.bundle)
    drafted = bringup.load_batch(given.bundle, draft=given.draft, draft_tokens=given.draft_tokens)
    assert drafted.drafts
    texts, _ = prompts(plain)
    timed = {batch: Timed(batch.executor) for batch in (plain, drafted)}
    print("requests | time with the draft / without | the main model's part of it | accepted | tokens a step | equal")
    for sequences in given.sequences:
        ratios, parts, equal = list[float](), list[float](), 0
        drafted.drafts.stats = type(drafted.drafts.stats)()
        for index in range(given.rounds + 1):
            runs = {}
            for batch in (plain, drafted) if index % 2 else (drafted, plain):
                runs[batch is drafted] = turn(batch, timed[batch], texts[:sequences], given.max_new_tokens)
            if index:  # the first round reads the weights
                ratios.append(runs[True][0] / runs[False][0])
                parts.append(timed[drafted].seconds / runs[False][0])
            equal = sum(one == other for one, other in zip(runs[True][1], runs[False][1], strict=True))
        stats = drafted.drafts.stats
        figures = (f"{statistics.median(each):.2f} [{min(each):.2f} - {max(each):.2f}]" for each in (ratios, parts))
        rates = f"{stats.acceptance_rate:.1%} | {stats.tokens_per_step:.2f} | {equal} of {sequences}"
        print(f"{sequences} | {' | '.join(figures)} | {rates}", flush=True)


if __name__ == "__main__":
    main()
