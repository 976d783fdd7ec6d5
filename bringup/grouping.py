"""Many names as few: layers grouped into ranges, whole sub-trees told by their root."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def digits(name: str) -> tuple[str, tuple[int, ...]]:
    """A name with its numbers taken out: `h.3.w` → (`h.{}.w`, (3,))."""
    return _NUMBER.sub("{}", name), tuple(int(number) for number in _NUMBER.findall(name))


def grouped(names: Iterable[str]) -> list[str]:
    """The names with numbers as ranges: `h.{0..11}.w`. A group stands for exactly its product of ranges."""
    patterns: dict[str, set[tuple[int, ...]]] = {}
    for name in names:
        pattern, numbers = digits(name)
        patterns.setdefault(pattern, set()).add(numbers)
    return [text for pattern, numbers in patterns.items() for text in _ranges(pattern, numbers)]


def _ranges(pattern: str, tuples: set[tuple[int, ...]]) -> Iterator[str]:
    columns = [sorted(set(column)) for column in zip(*tuples, strict=True)]
    if math.prod(len(column) for column in columns) == len(tuples):
        yield pattern.format(*(_range(column) for column in columns))
        return
    widest = max(range(len(columns)), key=lambda k: len(columns[k]))
    rests: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for numbers in tuples:
        rests.setdefault(numbers[:widest] + numbers[widest + 1 :], set()).add(numbers)
    for group in rests.values():
        yield from _ranges(pattern, group)


def _range(values: list[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    if values == list(range(values[0], values[-1] + 1)):
        return f"{{{values[0]}..{values[-1]}}}"
    return "{" + ",".join(map(str, values)) + "}"


def roots(names: Iterable[str], everything: Iterable[str]) -> dict[str, list[str]]:
    """The highest sub-trees of `everything` that lie in `names` as a whole: {root: names below it}.

    A sub-tree of one name is that name. `h.12` stands for its twelve tensors when all of them are meant.
    """
    meant = set(names)
    outside: set[str] = set()
    for name in everything:
        if name not in meant:
            outside.update(_ancestors(name))
    found: dict[str, list[str]] = {}
    for name in names:
        root = next((above for above in _ancestors(name) if above not in outside), name)
        found.setdefault(root, []).append(name)
    return {root if len(below) > 1 else below[0]: below for root, below in found.items()}


def _ancestors(name: str) -> Iterator[str]:
    """`h`, `h.3`, `h.3.attn` of `h.3.attn.w`."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])
