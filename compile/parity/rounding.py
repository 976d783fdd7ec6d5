"""How far 16-bit logits may be from exact ones: as far as the reference's own 16-bit logits are, measured.

Every row of logits has one number: the root mean square of its differences from the exact logits, which are the
reference's in float32. The reference's own row, computed in 16 bits from the same tokens, has such a number as well:
the row's noise. docs/verify.md states the bound and why it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bringup.compile.parity.parity import TOLERANCE, Difference, relative

# Two correct programs that round at other places have noise of one size. Over every family's configurations in
# tests/models/test_rounding.py the median row of ours has 0.7 to 1.3 times the reference's noise, whether weights
# are calm or make attention uneven, but where a router chose otherwise.
TYPICAL = 2.0  # median row of a phase, over the reference's
ROW = 4.0  # every row, over the larger of the reference's row and its median row
FEW = 8  # rows; the median of fewer is no statistic
# Rounding a number to the dtype moves it by up to 2^-9 (2^-12) of its size: no noise is taken to be smaller.
# In float32 sums in another order move more than rounding does: `ROW` times its number is `TOLERANCE`.
UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": TOLERANCE / ROW}


def rms(rows: np.ndarray) -> np.ndarray:
    """Float64 [R]: the root mean square of each row of [R, …]; infinite where a number is not finite."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.sqrt((flat * flat).mean(-1))
    return np.where(np.isfinite(found), found, np.inf)


@dataclass(frozen=True, slots=True)
class Bound:
    """What logits are compared with: `wanted`, float32 [T, V], and the noise that they may have.

    `noise` is float64 [T], the RMS of each row's rounding; `peak` [T] the largest difference in it. None in float32:
    there the bound is `TOLERANCE`. `share`: the logits compared and `wanted` have noise each, when it is the square
    root of 2.
    """

    wanted: np.ndarray
    noise: np.ndarray | None = None
    peak: np.ndarray | None = None
    share: float = 1.0
    reach: np.ndarray | float = 0.0

    def at(self, rows: np.ndarray) -> Bound:
        """The bound of these rows of the sequence."""
        noise, peak = self.noise, self.peak
        return Bound(
            self.wanted[rows], None if noise is None else noise[rows], None if peak is None else peak[rows], self.share
        )

    def nearer(self, ours: np.ndarray, other: np.ndarray) -> Bound:
        """The same with the rows of `other`, float32 [T, V], wanted where ours are nearer to them."""
        near = rms(ours - other) < rms(ours - self.wanted)
        return Bound(np.where(near[:, None], other, self.wanted), self.noise, self.peak, self.share)

    def rows_beyond(self, ours: np.ndarray, median: float) -> np.ndarray:
        """For each row of ours, how often its error contains what it may be."""
        if self.noise is None:
            gap = np.abs(ours.astype(np.float64) - self.wanted).max(-1, initial=0.0)
            largest = TOLERANCE * max(float(np.abs(self.wanted).max(initial=0.0)), 1e-30)
            return np.where(np.isfinite(gap), gap, np.inf) / largest
        allowed = ROW * self.share * np.maximum(np.maximum(self.noise, median), 1e-30)
        return rms(ours - self.wanted) / (allowed + self.reach)

    @property
    def margin(self) -> np.ndarray | float:
        """How much larger the top logit of `wanted` has to be than the second for the top token to be decided."""
        if self.peak is None:
            return 2 * TOLERANCE * float(np.abs(self.wanted).max(initial=0.0))
        return 4 * self.share * self.peak


def bound_of(exact: np.ndarray, rounded: np.ndarray, dtype: str, share: float = 1.0) -> Bound:
    """The bound that logits [T, V] of one program give by rounding: `rounded` in 16 bits, `exact` in float32."""
    gap = rounded.astype(np.float64) - exact
    return Bound(exact, np.maximum(rms(gap), UNIT[dtype] * rms(exact)), np.abs(gap).max(-1), share)


def judge(
    phase: str,
    ours: np.ndarray,
    bound: Bound,
    median: float,
    explained: np.ndarray | None = None,
    reach: np.ndarray | None = None,
) -> Difference:
    """Compares logits [R, V] of one phase with the same rows of a bound, whose whole sequence has the noise `median`.

    `explained`, float32 [R, V], are exact logits with the choices that the program has made: a row may agree with
    either. One that agrees with neither may be `reach` further off, float64 [R]: as far as one other choice of that
    row moves it. `undecided` are the rows that agree in one of these ways alone.
    """
    alone = bound.rows_beyond(ours, median) > 1
    if explained is not None:
        bound = bound.nearer(ours, explained)
    left = bound.rows_beyond(ours, median) > 1
    if reach is not None:
        bound = replace(bound, reach=np.where(left, reach, 0.0))
    wrong, decided = _top_tokens(ours, bound.wanted, bound.margin)
    is_open = left & (bound.rows_beyond(ours, median) <= 1)
    return Difference(
        phase=phase,
        rows=len(ours),
        relative=relative(ours, bound.wanted),
        excess=_excess(ours, bound, median),
        wrong=int((wrong & ~is_open).sum()),
        exempt=int((~decided).sum()),
        undecided=int((alone & (bound.rows_beyond(ours, median) <= 1)).sum()),
    )


def _excess(ours: np.ndarray, bound: Bound, median: float) -> float:
    """How often an error contains what it may be: the largest of every row, and of the median row."""
    if not np.isfinite(ours).all():
        return float("inf")
    excess = float(bound.rows_beyond(ours, median).max(initial=0.0))
    if bound.noise is None or len(ours) < FEW:
        return excess
    typical = float(np.median(rms(ours - bound.wanted)))
    return max(excess, typical / max(TYPICAL * bound.share * float(np.median(bound.noise)), 1e-30))


def _top_tokens(ours: np.ndarray, wanted: np.ndarray, margin: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Which rows have another top token though the margin decides it; and which rows it decides."""
    second, first = np.partition(wanted, -2, axis=-1)[:, -2:].T
    decided = first - second > margin
    return decided & (ours.argmax(-1) != wanted.argmax(-1)), decided


def near(given: np.ndarray, wanted: np.ndarray, exact: np.ndarray, dtype: str) -> bool:
    """Whether two executors agree on an array [R, …] of logits or of a state; `exact` is the same in float32.

    In 16 bits both are off, and by rounding alone no further than `judge` allows; rows that hold nothing do not count.
    """
    if dtype == "float32":
        return relative(given, wanted) <= TOLERANCE
    used = np.flatnonzero(rms(exact) > 0)
    right, ours, torch = (array[used].reshape(len(used), -1).astype(np.float32) for array in (exact, given, wanted))
    if not len(used):
        return True
    bound = bound_of(right, torch, dtype)
    assert bound.noise is not None, "16 bits have noise"
    return _excess(ours, bound, float(np.median(bound.noise))) <= 1
