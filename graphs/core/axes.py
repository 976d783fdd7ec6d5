"""Named axes: the part of a tensor's type that a shape cannot express.

Grammar, one item a dimension: ``out in`` · ``out:(h d) in:m`` (a named product) · ``out:(q | k | v) in`` (a sum: its
parts are concatenated) · ``(t h d) m`` (an unnamed product). The notation is that of einops (https://einops.rocks),
with names for groups and with sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis; `parts` split it into a product (outermost first) or, with `sum`, are concatenated.

    `size` is 0 while unknown. An unnamed axis has the name "".
    """

    name: str
    size: int = 0
    parts: tuple[Axis, ...] = ()
    sum: bool = False

    def __hash__(self) -> int:
        return hash((self.name, self.size))  # axes that differ in their parts alone are rare; a check hashes many

    def __str__(self) -> str:
        if not self.parts:
            return self.name or str(self.size)
        inner = (" | " if self.sum else " ").join(map(str, self.parts))
        if self.name and len(self.parts) == 1:
            return f"{self.name}:{inner}"
        return f"{self.name}:({inner})" if self.name else f"({inner})"

    def walk(self) -> Iterator[Axis]:
        """This axis and everything below it."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def sized(self, sizes: Sizes) -> Axis:
        """The same axis with sizes filled in from `sizes` by name, and groups computed from their parts."""
        parts = tuple(part.sized(sizes) for part in self.parts)
        if not parts:
            return replace(self, size=sizes.get(self.name, self.size))
        known = [part.size for part in parts]
        size = 0 if 0 in known else sum(known) if self.sum else math.prod(known)
        return replace(self, parts=parts, size=size or sizes.get(self.name, self.size))

    def factors(self, whole: set[str]) -> Iterator[Axis]:
        """The elementary axes of a product, outermost first; a group whose name is in `whole` is not split."""
        if self.parts and not self.sum and self.name not in whole:
            for part in self.parts:
                yield from part.factors(whole)
        else:
            yield self


Axes = tuple[Axis, ...]

_TOKEN = re.compile(r"\s*(?:(\w+:)|(\w+)|([()|]))")


class AxesError(ValueError):
    """An axes string that does not parse, or axes that do not fit."""


class DtypeError(AxesError):
    """Elements of a dtype that is not valid here."""


@cache
def parse(text: str) -> Axes:
    """The axes of a string such as ``"out:(h d) in"``. Raises AxesError on a syntax error."""
    axes, rest = _items(text, _tokens(text), depth=0)
    assert not rest
    return axes


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise AxesError(f"cannot read axes `{text}` at `{text[at:].strip()}`")
        tokens.append(found.group().strip())
        at = found.end()
    return tokens


def _items(text: str, tokens: list[str], depth: int) -> tuple[Axes, list[str]]:
    items: list[Axis] = []
    while tokens and tokens[0] not in (")", "|"):
        token, *tokens = tokens
        if token.endswith(":") and not tokens:
            raise AxesError(f"`{token}` is not valid in axes `{text}`")
        if token.endswith(":") and tokens[0] != "(":
            items.append(Axis(token[:-1], parts=(Axis(tokens.pop(0)),)))
        elif token == "(" or token.endswith(":"):
            group, tokens = _group(text, token[:-1], tokens if token == "(" else tokens[1:], depth)
            items.append(group)
        elif token.isdigit():
            items.append(Axis("", int(token)))
        else:
            items.append(Axis(token))
    if tokens and depth == 0:
        raise AxesError(f"`{tokens[0]}` without `(` in axes `{text}`")
    return tuple(items), tokens


def _group(text: str, name: str, tokens: list[str], depth: int) -> tuple[Axis, list[str]]:
    parts: list[Axis] = []
    while True:
        items, tokens = _items(text, tokens, depth + 1)
        if not tokens or not items:
            raise AxesError(f"unfinished group in axes `{text}`")
        end, *tokens = tokens
        if not parts and end == ")":
            return Axis(name, parts=items), tokens
        parts.append(items[0] if len(items) == 1 else Axis("", parts=items))
        if end == ")":
            return Axis(name, parts=tuple(parts), sum=True), tokens


def sized(text: str, sizes: Sizes) -> Axes:
    """Parsed axes with sizes filled in by name."""
    items = tuple(sizes.items())
    plain = all(type(size) is int for _, size in items)  # `Tracked` integers are equal but differ in their keys
    return _sized(text, items) if plain else _sized.__wrapped__(text, items)


@lru_cache(maxsize=4096)  # layers are alike, and so are experts
def _sized(text: str, sizes: tuple[tuple[str, int], ...]) -> Axes:
    known = dict(sizes)
    return tuple(axis.sized(known) for axis in parse(text))


def shape_of(axes: Axes) -> tuple[int, ...]:
    """The sizes of the dimensions."""
    return tuple(axis.size for axis in axes)


def show(axes: Axes) -> str:
    """The string that parses to `axes`."""
    return " ".join(map(str, axes))


def sizes_of(axes: Axes) -> dict[str, int]:
    """Every known size by name, groups included."""
    return {node.name: node.size for axis in axes for node in axis.walk() if node.name and node.size}


def leaf_names(axes: Axes) -> set[str]:
    """Names of axes that are not products (a sum counts as a leaf)."""
    return {n.name for axis in axes for n in axis.walk() if n.name and (n.sum or not n.parts)}


def permutation(actual: Axes, wanted: Axes) -> tuple[Axes, tuple[int, ...]]:
    """The elementary axes of `actual`, and the position of each elementary axis of `wanted` among them.

    A group named on one side may be refined on the other. Raises AxesError when the names or sizes differ.
    """
    have = tuple(f for axis in actual for f in axis.factors(leaf_names(wanted)))
    want = tuple(f for axis in wanted for f in axis.factors(leaf_names(actual)))
    names = [factor.name or f"size {factor.size}" for factor in have]
    goal = [factor.name or f"size {factor.size}" for factor in want]
    if sorted(names) != sorted(goal) or len(set(names)) != len(names):
        raise AxesError(f"axes are `{show(actual)}`, the parameter has `{show(wanted)}`")
    order = tuple(names.index(name) for name in goal)
    for at, factor in zip(order, want, strict=True):
        if have[at].size != factor.size:
            raise AxesError(f"axis `{factor.name}` has size {have[at].size}, the parameter has {factor.size}")
        if factor.sum and have[at].sum and not _same_parts(have[at], factor):
            raise AxesError(f"parts are `{have[at]}`, the parameter has `{factor}`")
    return have, order


def _same_parts(actual: Axis, wanted: Axis) -> bool:
    """Compares part by part: equal sizes; equal names, unless ours is unnamed or has the name of the complete axis."""
    if len(actual.parts) != len(wanted.parts):
        return False
    for ours, theirs in zip(actual.parts, wanted.parts, strict=True):
        vague = not ours.parts and ours.name in ("", actual.name)
        if ours.size != theirs.size or not (vague or ours.name == theirs.name or _names(ours) == _names(theirs)):
            return False
    return True


def _names(axis: Axis) -> list[str]:
    return [factor.name for factor in axis.factors(set())]
