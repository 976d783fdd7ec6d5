"""Errors in values: NaN, infinity, matrices of zeros. Checked while weights are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bringup.adapters.apply.quantise import dense
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic, Severity, Sites
from bringup.grouping import grouped
from bringup.spec import FLOATS, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from bringup.adapters.algebra.copy_nest import Loop, Nest

CHUNK = 1 << 20  # elements that are checked at a time, to limit memory
# The bits of a float without its sign increase with its magnitude; from these on it is infinity or NaN (IEEE 754; a
# bfloat16 is the upper half of a float32).
INFINITE = {"float64": 0x7FF0 << 48, "float32": 0x7F80 << 16, "float16": 0x7C00, "bfloat16": 0x7F80}

CHECK = "`bringup check --values` reports it as an error"

# code: severity, what is wrong with the parameters, and the fix
_MESSAGES = {
    "BU133": (
        Severity.ERROR,
        "holds NaN or infinity",
        "trained weights are finite: was the tensor ever written, and does its dtype hold its values?",
    ),
    "BU134": (
        Severity.WARNING,
        "is all zeros",
        "a trained matrix is not: was the tensor allocated and never filled?",
    ),
}


@dataclass(frozen=True, slots=True)
class Unsound:
    """A parameter with such values; of NaN and infinity their number, and the position of the first, "" if unknown."""

    entry: Entry
    count: int = 0
    place: str = ""

    @property
    def facts(self) -> str:
        """The number and the position, as the end of a message."""
        values = f": {self.count:,} value{'' if self.count == 1 else 's'}" if self.count else ""
        return f"{values}, the first at {self.place}" if self.place else values


@dataclass(slots=True)
class Soundness:
    """The parameters with values that no trained model has, by code; logical ones, if a layout joins them."""

    found: dict[str, list[Unsound]] = field(default_factory=dict[str, list[Unsound]])

    def look(self, entry: Entry, array: np.ndarray) -> None:
        """Records errors in an entry's array. Only matrices must not be zero: biases often are."""
        infinite = INFINITE.get(array.dtype.name)
        if infinite is None or not array.size:
            return
        for part, own in _parts(entry, array):
            largest = max(map(_largest, own), default=1)
            if largest >= infinite:
                count, place = sum(map(_not_finite, own)), _first(entry, part, array)
                self.found.setdefault("BU133", []).append(Unsound(part, count, place))
            elif not largest and len(part.declared.storage[0]) > 1:
                self.found.setdefault("BU134", []).append(Unsound(part))

    def look_at_tensor(self, entry: Entry, info: TensorInfo, array: np.ndarray) -> None:
        """Records errors in a tensor as it is stored; `entry` is a parameter that is computed from it."""
        self.look(replace(entry, sources=(info,), region=dense(0, info.dtype, info.shape), parts=()), array)

    def findings(self, plan: Plan, *, stops: bool = True) -> Iterator[Diagnostic]:
        """One for each code: BU133 is an error if it `stops` the command, otherwise a warning; BU134 is a warning."""
        for code, found in self.found.items():
            severity, message, help = _MESSAGES[code]
            entries = [each.entry for each in found]
            listing, first = ", ".join(grouped(dict.fromkeys(entry.declared.name for entry in entries))), found[0]
            sources = tuple(dict.fromkeys(info.name for entry in entries for info in entry.tensors))
            facts = replace(first, count=sum(each.count for each in found)).facts
            yield Diagnostic(
                code=code,
                severity=severity if stops else Severity.WARNING,
                message=f"`{listing}` {message}{facts}",
                help=help if stops or severity is not Severity.ERROR else f"{help} {CHECK}",
                parameter=listing,
                sources=sources,
                **Sites(where=first.entry.rule.site, declared=first.entry.declared.site) | stored(plan, sources),
            )


def _parts(entry: Entry, array: np.ndarray) -> Iterator[tuple[Entry, list[np.ndarray]]]:
    """Each parameter in an array, with its pieces of the array."""
    if not entry.parts or entry.region.word > 1:
        yield entry, [array]
        return
    for part, first, last in entry.parts:
        yield part, [_piece(array, nest) for nest in entry.region.nests if first <= nest.source < last]


def _ordered(nest: Nest) -> list[Loop]:
    """The loops of a nest in the order of the result's memory."""
    return sorted(nest.loops, key=lambda loop: loop[2], reverse=True)


def _piece(array: np.ndarray, nest: Nest) -> np.ndarray:
    """The elements that a nest writes, in memory order: a view."""
    from numpy.lib.stride_tricks import as_strided

    loops = _ordered(nest)
    shape, strides = [extent for extent, _, _ in loops], [to * array.itemsize for _, _, to in loops]
    return as_strided(array.reshape(-1)[nest.dst :], shape, strides, writeable=False)


def _first(entry: Entry, part: Entry, array: np.ndarray) -> str:
    """The position of a parameter's first NaN or infinity: the tensor of the checkpoint, and the index in it.

    "" if rules computed the value.
    """
    ranges = {id(joined): (first, last) for joined, first, last in entry.parts}
    first, last = ranges.get(id(part), (0, len(entry.sources)))
    nests = entry.region.nests if entry.region.word == 1 else ()
    for nest in nests:
        if first <= nest.source < last and (at := _position(_piece(array, nest))) is not None:
            source = entry.sources[nest.source]
            if not isinstance(source, TensorInfo) or source.dtype not in FLOATS:
                return ""
            offset = nest.src + sum(index * read for index, (_, read, _) in zip(at, _ordered(nest), strict=True))
            return f"`{source.name}`{_index(offset, source.shape)}"
    return ""


def _index(offset: int, shape: Shape) -> list[int]:
    """The index of the element at an offset of a dense array."""
    index: list[int] = []
    for size in reversed(shape):
        offset, each = divmod(offset, size)
        index.append(each)
    return index[::-1]


def _bits(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements of a float array as bits without the sign, some at a time."""
    width = 8 * array.itemsize
    bits = array.reshape(-1).view(f"uint{width}")
    mask = bits.dtype.type((1 << (width - 1)) - 1)
    return (bits[at : at + CHUNK] & mask for at in range(0, bits.size, CHUNK))


def _largest(array: np.ndarray) -> int:
    """The largest magnitude of a float array, as bits without the sign."""
    return max(int(bits.max()) for bits in _bits(array))


def _not_finite(array: np.ndarray) -> int:
    return sum(int((bits >= INFINITE[array.dtype.name]).sum()) for bits in _bits(array))


def _position(array: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity."""
    for chunk, bits in enumerate(_bits(array)):
        if (wrong := bits >= INFINITE[array.dtype.name]).any():
            return tuple(_index(chunk * CHUNK + int(wrong.argmax()), array.shape))
    return None
