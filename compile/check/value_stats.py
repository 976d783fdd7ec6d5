"""Errors in values: NaN, infinity, matrices of zeros. Checked while weights are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic, Severity, Sites
from bringup.grouping import grouped

if TYPE_CHECKING:
    import numpy as np

    from bringup.adapters.algebra.copy_nest import Nest

CHUNK = 1 << 20  # elements that are checked at a time, to limit memory
# The bits of a float without its sign increase with its magnitude; from these on it is infinity or NaN (IEEE 754; a
# bfloat16 is the upper half of a float32).
INFINITE = {"float64": 0x7FF0 << 48, "float32": 0x7F80 << 16, "float16": 0x7C00, "bfloat16": 0x7F80}

# code: severity, what is wrong with the parameters, and the fix
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
    """The parameters with values that no trained model has, by code; logical ones, if a layout joins them."""

    found: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])

    def look(self, entry: Entry, array: np.ndarray) -> None:
        """Records errors in an entry's array. Only matrices must not be zero: biases often are."""
        infinite = INFINITE.get(array.dtype.name)
        if infinite is None or not array.size:
            return
        for part, own in _parts(entry, array):
            largest = max(map(_largest, own), default=1)
            if largest >= infinite:
                self.found.setdefault("BU133", []).append(part)
            elif not largest and len(part.declared.storage[0]) > 1:
                self.found.setdefault("BU134", []).append(part)

    def findings(self, plan: Plan) -> Iterator[Diagnostic]:
        """One for each code: BU133 is an error, BU134 a warning."""
        for code, entries in self.found.items():
            severity, message, help = _MESSAGES[code]
            listing, first = ", ".join(grouped([entry.declared.name for entry in entries])), entries[0]
            sources = tuple(info.name for entry in entries for info in entry.tensors)
            yield Diagnostic(
                code=code,
                severity=severity,
                message=f"`{listing}` {message}",
                help=help,
                parameter=listing,
                sources=sources,
                **Sites(where=first.rule.site, declared=first.declared.site) | stored(plan, sources),
            )


def _parts(entry: Entry, array: np.ndarray) -> Iterator[tuple[Entry, list[np.ndarray]]]:
    """Each parameter in an array, with its pieces of the array."""
    if not entry.parts or entry.region.word > 1:
        yield entry, [array]
        return
    for part, first, last in entry.parts:
        yield part, [_piece(array, nest) for nest in entry.region.nests if first <= nest.source < last]


def _piece(array: np.ndarray, nest: Nest) -> np.ndarray:
    """The elements that a nest writes, in memory order: a view."""
    from numpy.lib.stride_tricks import as_strided

    loops = sorted(((to, extent) for extent, _, to in nest.loops), reverse=True)
    shape, strides = [extent for _, extent in loops], [to * array.itemsize for to, _ in loops]
    return as_strided(array.reshape(-1)[nest.dst :], shape, strides, writeable=False)


def _largest(array: np.ndarray) -> int:
    """The largest magnitude of a float array, as bits without the sign."""
    width = 8 * array.itemsize
    bits = array.reshape(-1).view(f"uint{width}")
    mask = bits.dtype.type((1 << (width - 1)) - 1)
    return max(int((bits[at : at + CHUNK] & mask).max()) for at in range(0, bits.size, CHUNK))
