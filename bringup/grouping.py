"""Groups of many names: layers as ranges, complete subtrees as their root."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from bringup.shown import short

# A number is a complete section of a name, without leading zeros (`01` is not `1`), and short enough to be a layer.
_NUMBER = re.compile(r"\.(0|[1-9][0-9]{0,8})(?=\.)")
_COLUMNS = 4  # numbers of a name that are considered; a model has two, a layer's and an expert's
_DEPTH = 32  # sections of a name that can be the root of a subtree

Numbers = tuple[int, ...]


def digits(name: str) -> tuple[str, Numbers]:
    """A name as a format string and its numbers: `h.3.w` → (`h.{}.w`, (3,))."""
    if name.isdecimal():  # a name, not a section of one
        return name, ()
    parts = _NUMBER.split(f".{name}.".replace("{", "{{").replace("}", "}}"), _COLUMNS)
    return ".{}".join(parts[::2])[1:-1], tuple(map(int, parts[1::2]))


def grouped(names: Iterable[str]) -> list[str]:
    """The names with numbers as ranges: `h.{0..11}.w`. A group stands for exactly its product of ranges."""
    return [text for text, _ in counted(names)]


def counted(names: Iterable[str]) -> list[tuple[str, int]]:
    """As `grouped`, with the number of names in each group."""
    patterns: dict[str, set[Numbers]] = {}
    for name in names:
        pattern, numbers = digits(name)
        patterns.setdefault(pattern, set()).add(numbers)
    return [
        (pattern.format(*map(_range, product)), math.prod(map(len, product)))
        for pattern, tuples in patterns.items()
        for product in _products(tuples)
    ]


def listed(names: Iterable[str], limit: int = 4) -> str:
    """The first groups of names in backticks, very long ones cut, and the number of the others."""
    return some(grouped(names), limit)


def some(names: Iterable[str], limit: int = 5) -> str:
    """The first names in backticks, very long ones cut, and the number of the others."""
    return first_few((f"`{short(name)}`" for name in names), limit)


def first_few(texts: Iterable[str], limit: int) -> str:
    """The first texts, and the number of the others: `a, b and 3 more`."""
    found = list(texts)
    return ", ".join(found[:limit]) + (f" and {len(found) - limit} more" if len(found) > limit else "")


def joined(texts: Sequence[str], word: str) -> str:
    """All texts: `a, b and c` with the word "and"."""
    return f" {word} ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _products(tuples: set[Numbers]) -> Iterator[tuple[list[int], ...]]:
    """The tuples as a few products of columns: numbers of the widest column with equal neighbours are grouped."""
    columns = [sorted(set(column)) for column in zip(*tuples, strict=True)]
    if math.prod(map(len, columns)) == len(tuples):
        yield tuple(columns)
        return
    widest = max(range(len(columns)), key=lambda k: len(columns[k]))
    others: dict[int, set[Numbers]] = {number: set() for number in columns[widest]}
    for numbers in tuples:
        others[numbers[widest]].add(numbers[:widest] + numbers[widest + 1 :])
    alike: dict[frozenset[Numbers], list[int]] = {}
    for number, rest in others.items():
        alike.setdefault(frozenset(rest), []).append(number)
    for rest, together in alike.items():
        for product in _products(set(rest)):
            yield (*product[:widest], together, *product[widest:])


def _range(values: list[int]) -> str:
    """`3`, `{0..11}`, `{0,2}`, `{0..4,6..11}`; the values are sorted and distinct."""
    runs = [[value for _, value in run] for _, run in groupby(enumerate(values), lambda pair: pair[1] - pair[0])]
    if len(values) == 1:
        return str(values[0])
    if len(runs) == 1:
        return f"{{{values[0]}..{values[-1]}}}"
    return "{" + ",".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs) + "}"


def roots(names: Iterable[str], everything: Iterable[str]) -> dict[str, list[str]]:
    """The highest subtrees of `everything` that are completely in `names`: {root: names below it}.

    A subtree of one name is that name. `h.12` stands for its twelve tensors if all of them are in `names`.
    """
    wanted = set(names)
    if not wanted:
        return {}
    outside: set[str] = set()
    for name in everything:
        if name not in wanted:
            outside.add(name)
            above = _parent(name)
            while above is not None and above not in outside:  # the ancestors of a known ancestor are known as well
                outside.add(above)
                above = _parent(above)
    found: dict[str, list[str]] = {}
    for name in names:
        root = next((above for above in _ancestors(name) if above not in outside), name)
        found.setdefault(root, []).append(name)
    return {root if len(below) > 1 else below[0]: below for root, below in found.items()}


def _parent(name: str) -> str | None:
    """The lowest of `_ancestors`."""
    if name.count(".") > _DEPTH:
        return ".".join(name.split(".", _DEPTH)[:_DEPTH])
    above, dot, _ = name.rpartition(".")
    return above if dot else None


def _ancestors(name: str) -> Iterator[str]:
    """`h`, `h.3`, `h.3.attn` of `h.3.attn.w`."""
    parts = name.split(".", _DEPTH)
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])
