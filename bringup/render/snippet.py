"""Source text as a terminal shows it, with a span underlined."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from unicodedata import category, east_asian_width

from bringup.render.spans import Span
from bringup.render.visible import visible

WIDTH = 120  # columns of source text
LEAD = 12  # characters before a span that begins too far to the right
LINES = 6  # the middle of a span over more lines is omitted

Row = tuple[str, str, str]  # line number or nothing, text, underline with its label


def rows(span: Span, sign: str, label: str) -> Iterator[Row]:
    """The lines of a span, and the underline: `^^^^ the rule`."""
    if len(span.lines) == 1:
        text, before, width = _window(span.lines[0], span.column, span.end_column)
        yield str(span.line), text, ""
        yield "", " " * before, f"{sign * width} {label}"
        return
    numbered = list(enumerate(span.lines, span.line))
    if len(numbered) > LINES:
        numbered[LINES // 2 : 1 - LINES // 2] = [(0, "…")]
    for number, line in numbered:
        edge = "/" if number == span.line else "|"
        yield str(number or ""), f"{edge} {_window(line, 0, 0)[0]}", ""
    yield "", "", f"|_{sign} {label}"


def _window(line: str, start: int, end: int) -> tuple[str, int, int]:
    """The visible part of a line, the columns before the span, and those of the span."""
    cells = [_cell(char) for char in line.rstrip()]
    at = [0, *accumulate(map(_width, cells))]  # the column of each cell
    first = 0
    while first < start - LEAD and at[end] - at[first] > WIDTH:
        first += 1
    last = bisect_right(at, at[first] + WIDTH) - 1
    left, right = "…" if first else "", "…" if last < len(cells) else ""
    under = max(1, at[min(end, last)] - at[start])
    return left + "".join(cells[first:last]) + right, len(left) + at[start] - at[first], under


def _cell(char: str) -> str:
    return "    " if char == "\t" else visible(char)


def _width(cell: str) -> int:
    """Columns in a terminal: two for wide characters (Unicode annex 11), none for combining ones."""
    return sum(map(_columns, cell))


def _columns(char: str) -> int:
    if char.isascii():
        return 1
    return 0 if category(char) in ("Mn", "Me") else 1 + (east_asian_width(char) in "WF")
