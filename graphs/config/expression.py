"""Regular expressions from untrusted files, matched in bounded time.

Python's `re` may need exponential time. Here each part of an expression maps the set of all positions at which it may
begin to the set of all positions at which it may end. Sets are bit masks, so no position is tried twice. The syntax is
that of `re`, without back references, look-behind, flags and possessive quantifiers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

LONGEST = 500  # characters of an expression
DEEPEST = 2  # nested repetitions: each level multiplies the time
MOST_TIMES = 1000
_TIMES = re.compile(r"\{(\d{1,4})(,?)(\d{0,4})\}")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\\\]])*\]")
_ESCAPED = re.compile(r"\\[dDwWsS]|\\[^\w\s]")

Part = Callable[[str, int], int]  # (text, mask of the positions where it may begin) -> mask of those where it may end


class Expression:
    """A compiled expression. Raises ValueError for one that is too long, too deeply nested, or not supported."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} characters")
        reader = _Reader(text)
        self._part, self.text = reader.either(), text
        if reader.at < len(text):
            raise ValueError("a `)` without `(`")

    def matches(self, text: str) -> bool:
        """Whether the text begins with a match, as in `re.match`."""
        return self._part(text, 1) != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


class _Reader:
    """Reads an expression from left to right; `depth` is the number of nested repetitions below this point."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def either(self) -> Part:
        depths, options = list[int](), list[Part]()
        while True:
            options.append(self._sequence())
            depths.append(self.depth)
            if not self._skips("|"):
                break
        self.depth = max(depths)
        if len(options) == 1:
            return options[0]
        return lambda text, begins: reduce(lambda ends, option: ends | option(text, begins), options, 0)

    def _sequence(self) -> Part:
        parts, deepest = list[Part](), 0
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self._repeated())
            deepest = max(deepest, self.depth)
        self.depth = deepest
        return lambda text, begins: reduce(lambda places, part: part(text, places), parts, begins)

    def _repeated(self) -> Part:
        part = self._one()
        if self._skips("*"):
            minimum, maximum = 0, None
        elif self._skips("+"):
            minimum, maximum = 1, None
        elif self._skips("?"):
            minimum, maximum = 0, 1
        elif found := _TIMES.match(self.text, self.at):
            self.at = found.end()
            minimum = int(found[1])
            maximum = int(found[3]) if found[3] else None if found[2] else minimum
        else:
            return part
        self._skips("?")  # lazy: the possible ends are the same
        if self.text[self.at : self.at + 1] in ("*", "+", "?") and self.at < len(self.text):
            raise ValueError("a repetition of a repetition")
        if max(minimum, maximum or 0) > MOST_TIMES or (maximum is not None and maximum < minimum):
            raise ValueError(f"a repetition of {minimum} to {maximum}")
        self.depth += maximum != 1
        if self.depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} nested repetitions")
        return _repetition(part, minimum, maximum)

    def _one(self) -> Part:
        self.depth = 0
        if self._skips("("):
            return self._group()
        if self._skips("^"):
            return lambda _, begins: begins & 1
        if self._skips("$"):
            return lambda text, begins: begins & (1 << len(text) | (text.endswith("\n") << len(text) >> 1))
        for kind in (_SET, _ESCAPED):
            if found := kind.match(self.text, self.at):
                self.at = found.end()
                try:
                    return _character(re.compile(found[0]))
                except re.error as error:
                    raise ValueError(str(error)) from None
        symbol = self.text[self.at]
        if symbol in "*+?[\\" or _TIMES.match(self.text, self.at):
            raise ValueError(f"`{self.text[self.at : self.at + 2]}` is not supported here")
        self.at += 1
        return _character(re.compile("." if symbol == "." else re.escape(symbol)))

    def _group(self) -> Part:
        ahead = self._skips("?=")
        lacking = not ahead and self._skips("?!")
        plain = ahead or lacking or self._skips("?:")
        if not plain and self._skips("?"):
            raise ValueError("a group `(?…` is not supported")
        inner = self.either()
        if not self._skips(")"):
            raise ValueError("a `(` without `)`")
        if not (ahead or lacking):
            return inner

        def look(text: str, begins: int) -> int:
            return sum(bit for bit in _bits(begins) if (inner(text, bit) != 0) is ahead)

        self.depth += 1
        return look

    def _skips(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found


def _character(kind: re.Pattern[str]) -> Part:
    return lambda text, begins: sum(bit << 1 for bit in _bits(begins) if kind.match(text, bit.bit_length() - 1))


def _bits(places: int) -> list[int]:
    found: list[int] = []
    while places:
        bit = places & -places
        places ^= bit
        found.append(bit)
    return found


def _repetition(part: Part, minimum: int, maximum: int | None) -> Part:
    def ends(text: str, begins: int) -> int:
        for _ in range(min(minimum, len(text) + 2)):  # after as many rounds as positions, the set no longer changes
            begins = part(text, begins)
        found, new, more = begins, begins, maximum
        while new and more != minimum:
            new = part(text, new) & ~found
            found |= new
            more = None if more is None else more - 1
        return found

    return ends
