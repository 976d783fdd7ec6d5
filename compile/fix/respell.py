"""Other spellings of a pattern: edits of its string literal that change its names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from bringup.compile.fix.pyfile import PyFile, pieces
from bringup.diagnostics import Fix

_HOLE = re.compile(r"(\{\w+\})")


def respelt(pattern: str, bindings: Mapping[str, str], name: str) -> str | None:
    """The pattern that yields `name` instead of the name of `pattern`, with the same values of its variables."""
    parts, wanted = _HOLE.split(pattern), ""
    for part in parts:
        if _HOLE.fullmatch(part):
            value = bindings.get(part[1:-1])
            wanted += rf"(?<!\d){re.escape(value)}(?!\d)" if value else r"\d+"
        else:
            wanted += f"({re.escape(part)}|.*?)"  # unchanged if possible
    found = re.fullmatch(wanted, name)
    if not found or any(char in text for text in found.groups() for char in "{}"):
        return None
    texts = iter(found.groups())
    return "".join(part if _HOLE.fullmatch(part) else next(texts) for part in parts)


def edits(file: PyFile, node: ast.expr, old: str, new: str) -> list[Fix] | None:
    """The edits of the string `node`, which spells `old`, so that it spells `new`; None if they are not certain."""
    parts = pieces(node)
    spelt = re.fullmatch("".join(f"({re.escape(text)})" if own else "(.*?)" for text, own in parts), old)
    if spelt is None:
        return None
    start, end = file.span(node)
    raw, found = file.text[start:end], list[Fix]()
    for at, before, after in _changes(old, new):
        k = next(
            (k for k in range(len(parts)) if spelt.start(k + 1) <= at and at + len(before) <= spelt.end(k + 1)), -1
        )
        if k < 0 or not parts[k][1]:
            return None  # it is in a value of an f-string
        text, inside = parts[k][0], at - spelt.start(k + 1)
        whole = text[:inside] + after + text[inside + len(before) :]
        if isinstance(node, ast.JoinedStr):
            text, whole = (part.replace("{", "{{").replace("}", "}}") for part in (text, whole))
        if raw.count(text) != 1:
            return None  # escapes, or a string in several pieces
        found.append(_narrowed(file, start + raw.index(text), text, whole))
    return found if len({(fix.line, fix.column) for fix in found}) == len(found) else None


def _changes(old: str, new: str) -> Iterator[tuple[int, str, str]]:
    """The different letters between variables: position, old text, new text."""
    at = 0
    for before, after in zip(_HOLE.split(old), _HOLE.split(new), strict=True):
        same = _common_prefix(before, after)
        rest, other = before[same:], after[same:]
        end = _common_prefix(rest[::-1], other[::-1])
        if before != after:
            yield at + same, rest[: len(rest) - end], other[: len(other) - end]
        at += len(before)


def _common_prefix(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _narrowed(file: PyFile, at: int, old: str, new: str) -> Fix:
    """The edit without unchanged names: complete dotted sections are replaced."""
    before, after = re.split(r"(\.)", old), re.split(r"(\.)", new)
    while len(before) > 1 and len(after) > 1 and before[0] == after[0]:
        at += len(before.pop(0))
        after.pop(0)
    while len(before) > 1 and len(after) > 1 and before[-1] == after[-1]:
        before.pop()
        after.pop()
    return file.fix(at, "".join(before), "".join(after))
