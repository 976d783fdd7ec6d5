"""How far what a kernel gives is from what the reference gives, and which elements are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The largest difference from the reference, over the largest value of the result: products of long rows in float32 are
# summed in another order; the reference rounds to 16 bits between operations that a kernel fuses.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, slots=True)
class Departure:
    """`error`: the largest difference over the largest value; of integers the share of those that differ.

    `element` is the worst one of the flat result, None where all are near enough. `wrong` of `count` elements are not,
    and all of them lie in `part`, a range of each axis.
    """

    error: float
    element: int | None = None
    at: str = ""
    wrong: int = 0
    count: int = 0
    part: str = ""

    def describe(self, name: str) -> str:
        """For a finding about the result `name`."""
        return (
            f"`{name}` departs from the reference by {self.error:.1e} at [{self.at}]; "
            f"{self.wrong} of {self.count} elements, in [{self.part}]"
        )


def departure(found: NDArray[Any], wanted: NDArray[Any]) -> Departure:
    """Of two arrays of one shape and dtype. NaN equals NaN."""
    if not wanted.size:
        return Departure(0.0)
    name, (found, wanted) = found.dtype.name, np.atleast_1d(found, wanted)
    if found.dtype.kind in "iub":
        off = (found != wanted).astype(np.float64)
        return _departure(off, float(off.mean()), off > 0)
    got, want = found.astype(np.float64), wanted.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.nan_to_num(np.abs(got - want), nan=np.inf))
    off /= float(np.max(np.abs(want), initial=1e-6, where=np.isfinite(want)))
    return _departure(off, float(off.max()), off > TOLERANCES.get(name, TOLERANCES["bfloat16"]))


def _departure(off: NDArray[np.float64], error: float, bad: NDArray[np.bool_]) -> Departure:
    wrong = int(np.count_nonzero(bad))
    if not wrong:
        return Departure(error)
    element = int(np.argmax(off))
    at = ", ".join(map(str, np.unravel_index(element, off.shape)))
    ranges = [(int(each.min()), int(each.max()) + 1) for each in np.nonzero(bad)]
    part = ", ".join(str(low) if high == low + 1 else f"{low}:{high}" for low, high in ranges)
    return Departure(error, element, at, wrong, off.size, part)
