"""Regular expressions of adapter_config.json, matched in bounded time, because the files are untrusted.

Python's matching tries alternatives one after another, and some expressions have exponentially many. Here a part of an
expression maps the set of all positions in a text at which it may begin to the set of all positions at which it may
end, so that no position is tried twice. Back references cannot be matched this way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

MOST_STEPS = 100_000  # for one text, of up to 0.4 µs each: 0.04 s. An expression that lists 320 names needs 1 to 5 %
MOST_LENGTH = 1 << 16  # characters: Python's parser takes 7 µs for each
MOST_DEPTH = 80  # of nested operations, each of which takes up to three levels of Python's stack
Places = frozenset[int]
ops: Any = import_module("re._constants")  # the operations of Python's expression parser, which are not public:
parser: Any = import_module("re._parser")  # an unknown operation is rejected


class Unbounded(ValueError):
    """An expression that cannot be matched in bounded time; the message states why."""


def fullmatch(expression: str, text: str) -> bool:
    """Whether `re.fullmatch` finds a match. Raises Unbounded."""
    return len(text) in ends(expression, text)


@lru_cache(maxsize=4096)
def ends(expression: str, text: str) -> Places:
    """The possible ends of an expression that begins at the start of a text. Raises Unbounded."""
    return _Matching(text).sequence(_tree(expression), frozenset([0]))


@lru_cache(maxsize=256)
def _tree(expression: str) -> Any:
    """The parse tree of Python's parser. Raises Unbounded, re.error for an invalid expression."""
    if len(expression) > MOST_LENGTH:
        raise Unbounded(f"it has {len(expression):,} characters; the limit is {MOST_LENGTH:,}")
    try:
        found = parser.parse(expression)
    except RecursionError:
        raise Unbounded("it is nested too deeply") from None
    if found.state.flags != re.UNICODE:
        raise Unbounded("it has flags")
    return found


def check(expression: str) -> None:
    """Raises Unbounded and re.error as matching any text would, except for Unbounded because of its time."""
    _Matching("").operations(_tree(expression))


@dataclass(slots=True)
class _Matching:
    """The matching of one text."""

    text: str
    steps: int = 0

    def sequence(self, items: Iterable[tuple[Any, Any]], places: Places) -> Places:
        """The possible ends of a sequence of items, which can be empty: an alternative without characters."""
        self.count(1 + len(places))
        for operation, argument in items:
            if not places:
                break
            self.count((1 + len(places)) * (len(argument) if operation is ops.IN else 1))
            places = self.step(operation, argument, places)
        return places

    def count(self, steps: int) -> None:
        """Raises Unbounded if too many steps are needed; called before they are taken."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise Unbounded(f"it needs more than {MOST_STEPS:,} steps for `{self.text[:80]}`")

    def step(self, operation: Any, argument: Any, places: Places) -> Places:
        if operation in _CHARACTERS:
            is_one = _CHARACTERS[operation]
            return frozenset(at + 1 for at in places if at < len(self.text) and is_one(argument, self.text[at]))
        if operation is ops.AT:
            return frozenset(at for at in places if _at(argument, self.text, at))
        if operation is ops.SUBPATTERN:
            return self.sequence(argument[3], places)
        if operation is ops.BRANCH:
            return frozenset[int]().union(*(self.sequence(branch, places) for branch in argument[1]))
        if operation in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            minimum, maximum, inner = argument
            return self.repeated(minimum, maximum, inner, places)
        direction, items = argument  # of ASSERT, ASSERT_NOT
        return frozenset(at for at in places if self.stands(direction, items, at) is (operation is ops.ASSERT))

    def repeated(self, minimum: int, maximum: int, items: Any, places: Places) -> Places:
        for _ in range(minimum):
            before, places = places, self.sequence(items, places)
            if places == before or not places:  # more repetitions change nothing
                break
        found, last = set(places), places
        for _ in range(maximum - minimum):
            last = self.sequence(items, last) - found
            if not last:
                break
            found |= last  # in place: the time is that of `last`, which is counted
        return frozenset(found)

    def stands(self, direction: int, items: Any, at: int) -> bool:
        """Whether items match from a position on, or up to it."""
        if direction > 0:
            return bool(self.sequence(items, frozenset([at])))
        return at in self.sequence(items, frozenset(range(at + 1)))

    def operations(self, items: Iterable[tuple[Any, Any]], depth: int = 0) -> None:
        """Raises Unbounded for an operation that `step` does not implement, and for parts nested too deeply."""
        if depth > MOST_DEPTH:
            raise Unbounded("it is nested too deeply")
        for operation, argument in items:
            if operation in _CHARACTERS or operation is ops.AT:
                continue
            if operation is ops.SUBPATTERN and not argument[1] and not argument[2]:
                self.operations(argument[3], depth + 1)
            elif operation is ops.BRANCH:
                for branch in argument[1]:
                    self.operations(branch, depth + 1)
            elif operation in (ops.MAX_REPEAT, ops.MIN_REPEAT):
                self.operations(argument[2], depth + 1)
            elif operation in (ops.ASSERT, ops.ASSERT_NOT):
                self.operations(argument[1], depth + 1)
            else:
                raise Unbounded(f"it uses {str(operation).lower()}, which bounded matching does not support")


def _in(items: Any, character: str) -> bool:
    """Whether a character is in a set: `[^a-z\\d]`."""
    negated = items[0][0] is ops.NEGATE
    return negated is not any(_one_of(kind, value, character) for kind, value in items if kind is not ops.NEGATE)


def _one_of(kind: Any, value: Any, character: str) -> bool:
    if kind is ops.LITERAL:
        return ord(character) == value
    if kind is ops.RANGE:
        return value[0] <= ord(character) <= value[1]
    return _CATEGORIES[value](character)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _at(kind: Any, text: str, at: int) -> bool:
    if kind in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
        return at == 0
    if kind is ops.AT_END:
        return at == len(text) or (at == len(text) - 1 and text[at] == "\n")
    if kind is ops.AT_END_STRING:
        return at == len(text)
    edge = (at > 0 and _is_word(text[at - 1])) is not (at < len(text) and _is_word(text[at]))
    return edge is (kind is ops.AT_BOUNDARY)


_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    ops.CATEGORY_DIGIT: str.isdecimal,
    ops.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    ops.CATEGORY_SPACE: str.isspace,
    ops.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    ops.CATEGORY_WORD: _is_word,
    ops.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}
_CHARACTERS: dict[Any, Callable[[Any, str], bool]] = {
    ops.LITERAL: lambda value, character: ord(character) == value,
    ops.NOT_LITERAL: lambda value, character: ord(character) != value,
    ops.ANY: lambda value, character: character != "\n",
    ops.IN: _in,
}
