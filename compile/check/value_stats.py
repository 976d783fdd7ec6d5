"""What the numbers themselves give away: NaN, infinity, matrices of zeros. Looked at while they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.planning.plan import Plan
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic, Severity, Sites
from bringup.grouping import grouped

if TYPE_CHECKING:
    import numpy as np

CHUNK = 1 << 20  # elements looked at at a time, so that little memory is needed
# A float's bits without its sign grow with its magnitude; from these on it is infinity or NaN (IEEE 754; a bfloat16
# is the upper half of a float32).
INFINITE = {"float64": 0x7FF0 << 48, "float32": 0x7F80 << 16, "float16": 0x7C00, "bfloat16": 0x7F80}

# code: severity, what is said of the parameters, and what to do about it
_MESSAGES = {
    "BU133": (
        Severity.ERROR,
        "holds NaN or infinity",
        "such weights make every logit NaN: was the tensor ever written, and does its dtype hold its values?",
    ),
    "BU134": (
        Severity.WARNING,
        "is all zeros",
        "a trained matrix is not: was the tensor allocated and never filled?",
    ),
}


@dataclass(slots=True)
class Soundness:
    """The parameters with values that no trained model has, by code."""

    found: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def look(self, name: str, array: np.ndarray) -> None:
        """Notes what is wrong with an array. Only matrices may not be zero: biases often are."""
        infinite = INFINITE.get(array.dtype.name)
        if infinite is None or not array.size:
            return
        largest = _largest(array)
        if largest >= infinite:
            self.found.setdefault("BU133", []).append(name)
        elif not largest and array.ndim > 1:
            self.found.setdefault("BU134", []).append(name)

    def findings(self, plan: Plan) -> Iterator[Diagnostic]:
        """One for each code: BU133 is an error, BU134 a warning."""
        for code, names in self.found.items():
            severity, message, help = _MESSAGES[code]
            listing, first = ", ".join(grouped(names)), plan.entries[names[0]]
            sources = tuple(info.name for name in names for info in plan.entries[name].tensors)
            yield Diagnostic(
                code=code,
                severity=severity,
                message=f"`{listing}` {message}",
                help=help,
                parameter=listing,
                sources=sources,
                **Sites(where=first.rule.site, declared=first.declared.site) | stored(plan, sources),
            )


def _largest(array: np.ndarray) -> int:
    """The largest magnitude of a float array, as bits without the sign."""
    width = 8 * array.itemsize
    bits = array.reshape(-1).view(f"uint{width}")
    mask = bits.dtype.type((1 << (width - 1)) - 1)
    return max(int((bits[at : at + CHUNK] & mask).max()) for at in range(0, bits.size, CHUNK))
