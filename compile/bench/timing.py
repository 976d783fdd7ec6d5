"""Measurements: shapes, arrival times of tokens, and figures over several rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Shape:
    """`batch` sequences at once: `taken` tokens of a prompt, then `new` tokens, greedily."""

    batch: int
    taken: int
    new: int

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end; the last one is not an input."""
        return self.taken + self.new - 1


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a shape: the new tokens of each sequence, and the time of each in seconds since the beginning.

    `steps` is the processor time of all threads of the process since the beginning, in seconds, at the end of each
    step.
    """

    tokens: list[list[int]]
    times: list[list[float]]
    steps: list[float]

    @property
    def first(self) -> list[float]:
        """Time to the first token (TTFT) of each sequence."""
        return [each[0] for each in self.times]

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies (ITL) of all sequences."""
        return [later - sooner for each in self.times for sooner, later in pairwise(each)]

    @property
    def processor(self) -> float:
        """Processor time of the run, in seconds."""
        return self.steps[-1]

    @property
    def processor_of_steps(self) -> list[float]:
        """Processor time in seconds of each step except the first, which processes prompts as far as possible."""
        return [later - sooner for sooner, later in pairwise(self.steps)]

    @property
    def seconds(self) -> float:
        """Seconds to the last token of all."""
        return max(each[-1] for each in self.times)

    @property
    def count(self) -> int:
        """New tokens of all sequences."""
        return sum(map(len, self.tokens))


class Contender(Protocol):
    """An engine that generates tokens. `name` includes its version, `dtype` is the one that it computes in."""

    name: str
    dtype: str

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Timing:
        """Processes the prompts, which are of equal length, and generates `new` tokens for each, greedily."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A run, and the memory bandwidth measured just before and after it, in bytes per second."""

    timing: Timing
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Row:
    """An engine at one shape: the turns of all rounds. `weights` are the bytes of them that a step reads."""

    contender: str
    shape: Shape
    turns: list[Turn]
    weights: int | None

    def figures(self) -> dict[str, Any]:
        """Percentiles over all rounds in milliseconds; medians of rates; shares are computed within a round."""
        runs = [turn.timing for turn in self.turns]
        found: dict[str, Any] = {
            "contender": self.contender,
            **{"batch": self.shape.batch, "input": self.shape.taken, "output": self.shape.new},
            "ttft_ms": percentiles(value for run in runs for value in run.first),
            "itl_ms": percentiles(value for run in runs for value in run.gaps),
            "tokens_per_s": statistics.median(run.count / run.seconds for run in runs),
            "processor_ms_per_token": statistics.median(1e3 * run.processor / run.count for run in runs),
            "processor_ms_per_step": percentiles(value for run in runs for value in run.processor_of_steps),
            "bandwidth_share": None,
        }
        if self.weights is not None and self.shape.new > 1:
            shares = (self.weights / statistics.median(turn.timing.gaps) / turn.bandwidth for turn in self.turns)
            found["bandwidth_share"] = statistics.median(shares)
        return found

    def ratios(self, peer: Row) -> Mapping[str, float]:
        """The speed relative to a peer, median over rounds: TTFT, ITL, tokens per second, processor time of a step."""
        pairs = [(own.timing, other.timing) for own, other in zip(self.turns, peer.turns, strict=True)]
        found = {"ttft": [statistics.median(b.first) / statistics.median(a.first) for a, b in pairs]}
        if self.shape.new > 1:
            found["itl"] = [statistics.median(b.gaps) / statistics.median(a.gaps) for a, b in pairs]
            both = [(a.processor_of_steps, b.processor_of_steps) for a, b in pairs]
            found["step"] = [statistics.median(b) / statistics.median(a) for a, b in both]
        found["tokens_per_s"] = [b.seconds / a.seconds for a, b in pairs]
        found["processor"] = [b.processor / a.processor for a, b in pairs]
        return {name: statistics.median(values) for name, values in found.items()}

    def equal_tokens(self, peer: Row) -> int:
        """The least number of new tokens, over sequences and rounds, before the first that differs from a peer's."""
        pairs = zip(self.turns, peer.turns, strict=True)
        listed = [zip(own.timing.tokens, other.timing.tokens, strict=True) for own, other in pairs]
        return min(_equal(a, b) for sequences in listed for a, b in sequences)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """`p50`, `p90`, `p99` in milliseconds: the least value that so many percent do not exceed; {} for no values."""
    ordered = sorted(values)
    rank = {p: -(-len(ordered) * p // 100) - 1 for p in PERCENTILES}
    return {f"p{p}": 1e3 * ordered[at] for p, at in rank.items()} if ordered else {}


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
