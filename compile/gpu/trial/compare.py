"""Compares the result of a kernel with the reference: the error, and the wrong elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The largest accepted difference from the reference, divided by the largest absolute value of the result. Kernels sum
# long float32 products in another order, and the reference rounds to 16 bits between operations that a kernel fuses.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, slots=True)
class Departure:
    """The difference between a result and the reference.

    `error`: the largest difference divided by the largest absolute value; for integers, the fraction that differs.
    `element`: the flat index of the worst element, None if all are within the tolerance; `at`: its indices. `wrong` of
    `count` elements exceed the tolerance; `part` is the range of each axis that contains them.
    """

    error: float
    element: int | None = None
    at: str = ""
    wrong: int = 0
    count: int = 0
    part: str = ""

    def describe(self, name: str) -> str:
        """The text of a finding about the result `name`."""
        return (
            f"`{name}` departs from the reference by {self.error:.1e} at [{self.at}]; "
            f"{self.wrong} of {self.count} elements, in [{self.part}]"
        )


def departure(found: NDArray[Any], wanted: NDArray[Any]) -> Departure:
    """The difference of two arrays of equal shape and dtype; `wanted` is the reference. NaN equals NaN."""
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
