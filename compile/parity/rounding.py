"""The bound on the error of 16-bit logits: a multiple of the measured error of the reference's own 16-bit logits.

The error of a row of logits is the root mean square of its differences from the exact logits, which are the reference's
in float32. The error of the reference's row, computed in 16 bits from the same tokens, is the noise of the row.
docs/verify.md states the bound and its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bringup.compile.parity.parity import TOLERANCE, Difference, relative

# Two correct programs that round at different places have equal noise. Over every family's configurations in
# tests/models/test_rounding.py, the median row of ours has 0.7 to 1.3 times the reference's noise, for weights with
# even and with uneven attention, unless a router selected other experts.
TYPICAL = 2.0  # bound of the median row of a phase, in multiples of the reference's
ROW = 4.0  # bound of every row, in multiples of the larger of the reference's row and its median row
FEW = 8  # rows; the median of fewer is not reliable
# The least noise, relative to a row. Rounding to the dtype moves a value by up to 2^-9 (2^-12) of its size.
# In float32, sums in another order differ by more than rounding: `ROW` times this value is `TOLERANCE`.
UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": TOLERANCE / ROW}


def rms(rows: np.ndarray) -> np.ndarray:
    """Float64 [R]: the root mean square of each row of [R, …]; infinite for a row with NaN or infinity."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.sqrt((flat * flat).mean(-1))
    return np.where(np.isfinite(found), found, np.inf)


@dataclass(frozen=True, slots=True)
class Bound:
    """The expected logits, `wanted`, float32 [T, V], and their noise.

    `noise` is float64 [T], the RMS of each row's rounding; `peak` [T] is the largest difference in it. Both are None in
    float32, where the bound is `TOLERANCE`. `share` is the square root of 2 if `wanted` has noise too, otherwise 1.
    `reach` [T] is added to the bound of a row.
    """

    wanted: np.ndarray
    noise: np.ndarray | None = None
    peak: np.ndarray | None = None
    share: float = 1.0
    reach: np.ndarray | float = 0.0

    def at(self, rows: np.ndarray) -> Bound:
        """The bound of the rows [R] of the sequence with these indices."""
        noise, peak = self.noise, self.peak
        return Bound(
            self.wanted[rows], None if noise is None else noise[rows], None if peak is None else peak[rows], self.share
        )

    def nearer(self, ours: np.ndarray, other: np.ndarray) -> Bound:
        """The same bound, with the rows of `other`, float32 [T, V], expected if ours are nearer to them."""
        near = rms(ours - other) < rms(ours - self.wanted)
        return Bound(np.where(near[:, None], other, self.wanted), self.noise, self.peak, self.share)

    def rows_beyond(self, ours: np.ndarray, median: float) -> np.ndarray:
        """Float64 [R]: the error of each row of ours, divided by its bound."""
        if self.noise is None:
            gap = np.abs(ours.astype(np.float64) - self.wanted).max(-1, initial=0.0)
            largest = TOLERANCE * max(float(np.abs(self.wanted).max(initial=0.0)), 1e-30)
            return np.where(np.isfinite(gap), gap, np.inf) / largest
        allowed = ROW * self.share * np.maximum(np.maximum(self.noise, median), 1e-30)
        return rms(ours - self.wanted) / (allowed + self.reach)

    @property
    def margin(self) -> np.ndarray | float:
        """The difference between the two largest logits of `wanted` above which the top token must be equal; [T]."""
        if self.peak is None:
            return 2 * TOLERANCE * float(np.abs(self.wanted).max(initial=0.0))
        return 4 * self.share * self.peak


def bound_of(exact: np.ndarray, rounded: np.ndarray, dtype: str, share: float = 1.0) -> Bound:
    """The bound from the logits [T, V] of one program: `rounded` in 16 bits, `exact` in float32."""
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
    """Compares logits [R, V] of one phase with the same rows of a bound; `median` is the noise of the sequence's
    median row.

    `explained`, float32 [R, V], are exact logits with the selections (experts, keys) of the program: a row may agree
    with either. The bound of a row that agrees with neither is larger by `reach`, float64 [R]: the effect of one other
    selection of that row. Rows that agree only in one of these ways are `undecided`.
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
    """The largest error divided by its bound, over every row and the median row."""
    if not np.isfinite(ours).all():
        return float("inf")
    excess = float(bound.rows_beyond(ours, median).max(initial=0.0))
    if bound.noise is None or len(ours) < FEW:
        return excess
    typical = float(np.median(rms(ours - bound.wanted)))
    return max(excess, typical / max(TYPICAL * bound.share * float(np.median(bound.noise)), 1e-30))


def _top_tokens(ours: np.ndarray, wanted: np.ndarray, margin: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Bool [R]: the rows with another top token though the margin decides it; and the rows that it decides."""
    second, first = np.partition(wanted, -2, axis=-1)[:, -2:].T
    decided = first - second > margin
    return decided & (ours.argmax(-1) != wanted.argmax(-1)), decided


def near(given: np.ndarray, wanted: np.ndarray, exact: np.ndarray, dtype: str) -> bool:
    """Whether two executors agree on an array [R, …] of logits or of a state; `exact` is the same array in float32.

    In 16 bits both have rounding errors, which the bound of `judge` limits. Rows that are all zero are ignored.
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
