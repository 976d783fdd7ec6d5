"""The memory plan: offsets of temporaries in one arena, so that live ones never overlap.

Largest first, each at the lowest offset that is free during its lifetime: greedy by size (Pisarchyk and Lee 2020,
"Efficient memory management for deep neural net inference", §5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 256  # bytes; that of cudaMalloc, and more than any vector load needs


@dataclass(frozen=True, slots=True)
class Life:
    """A temporary of `nbytes` bytes, written by launch `first` and last read by launch `last`."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets by name, and the size of the arena, in bytes."""

    offsets: Mapping[str, int]
    nbytes: int


def planned(lives: Sequence[Life], *, reuse: bool = True) -> MemoryPlan:
    """The memory plan of temporaries; without `reuse`, each has separate memory."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, Life]] = []
    end = 0
    for life in sorted(lives, key=lambda life: (-life.nbytes, life.first, life.name)) if reuse else lives:
        at = _lowest(placed, life) if reuse else end
        size = _rounded(life.nbytes)
        placed.append((at, at + size, life))
        offsets[life.name] = at
        end = max(end, at + size)
    return MemoryPlan(offsets, end)


def peak(lives: Sequence[Life]) -> int:
    """The largest number of bytes alive at one launch: a lower bound of any plan."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.first] = changes.get(life.first, 0) + _rounded(life.nbytes)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - _rounded(life.nbytes)
    alive = most = 0
    for launch in sorted(changes):
        alive += changes[launch]
        most = max(most, alive)
    return most


def _lowest(placed: Sequence[tuple[int, int, Life]], life: Life) -> int:
    """The lowest offset at which nothing overlaps that is alive at the same time."""
    taken = sorted(
        (start, stop) for start, stop, other in placed if other.first <= life.last and life.first <= other.last
    )
    at = 0
    for start, stop in taken:
        if start - at >= _rounded(life.nbytes):
            break
        at = max(at, stop)
    return at


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
