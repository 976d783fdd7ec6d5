"""The source text of a site: the expression of a rule, the call that declares a parameter."""

from __future__ import annotations

import ast
import linecache
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from bringup.spec import Site


@dataclass(frozen=True, slots=True)
class Span:
    """Lines `line` to `end_line`, from 1, with their text; columns count characters from 0, the end excluded."""

    line: int
    column: int
    end_line: int
    end_column: int
    lines: tuple[str, ...]


def span_of(site: Site) -> Span | None:
    """The expression at a site; its complete line if there is none, None if the line does not exist."""
    linecache.checkcache(site.file)
    lines = [line.rstrip("\r\n") for line in linecache.getlines(site.file)]
    if not 0 < site.line <= len(lines) or not lines[site.line - 1].strip():
        return None
    found = None if site.file.endswith(".json") else _expression("\n".join(lines), site.line)  # JSON may be Python too
    if found is None:
        text = lines[site.line - 1]
        return Span(site.line, len(text) - len(text.lstrip()), site.line, len(text.rstrip()), (text,))
    first, column, last, end = found
    inside = tuple(lines[first - 1 : last])
    return Span(first, _characters(inside[0], column), last, _characters(inside[-1], end), inside)


def _characters(line: str, nbytes: int) -> int:
    """The number of characters in the first bytes: ast counts bytes of UTF-8."""
    return len(line.encode()[:nbytes].decode(errors="replace"))


@lru_cache(maxsize=16)
def _tree(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # running the file prints its warnings
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # the file has changed since it was run
        return None


def _expression(source: str, line: int) -> tuple[int, int, int, int] | None:
    """The span of the value of the statement on a line; for several lines, that of the call that begins there."""
    tree = _tree(source)
    statements = list(_statements(tree, line)) if tree else []
    value = getattr(statements[-1], "value", None) if statements else None
    if not isinstance(value, ast.expr):
        return None
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call) and node.lineno == line)
    node = value if value.lineno == line else next(calls, value)
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _statements(tree: ast.Module, line: int) -> Iterator[ast.stmt]:
    """The statements around a line, the innermost last."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node
