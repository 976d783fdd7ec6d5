"""A Python file as text with positions: those of sources, `S(…)`, and the result of an edit."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bringup.diagnostics import Fix


class EditConflict(ValueError):
    """Edits that cannot all be applied to one text."""


@dataclass(frozen=True)
class PyFile:
    """`text` has the file's own line ends; a byte order mark and the encoding are restored when it is written."""

    path: Path
    text: str
    encoding: str = "utf-8"

    @classmethod
    def read(cls, path: Path) -> PyFile:
        """Raises SyntaxError for an encoding that Python does not know, OSError if the file does not exist."""
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return cls(path, data.decode(encoding), encoding)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """Lines with their ends; only ends that Python recognises are counted."""
        return list(io.StringIO(self.text, newline=""))

    @cached_property
    def starts(self) -> list[int]:
        """The offset of each line in the text."""
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    def span(self, node: ast.expr) -> tuple[int, int]:
        """The range of a node in the text; the tree counts columns in bytes of UTF-8."""
        assert node.end_lineno is not None, "a node that was parsed"
        assert node.end_col_offset is not None, "a node that was parsed"
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        before = self.lines[line - 1].encode()[:column].decode()
        return self.starts[line - 1] + len(before)

    def fix(self, at: int, old: str, new: str) -> Fix:
        """The edit that replaces `old` at an offset of the text by `new`."""
        line = max(k for k, start in enumerate(self.starts) if start <= at)
        return Fix(str(self.path), line + 1, at - self.starts[line], old, new)

    def edited(self, fixes: Iterable[Fix]) -> PyFile:
        """The file with these edits.

        Raises EditConflict if two of them overlap or begin at the same offset, or if the file has another text than an
        edit replaces.
        """
        pieces, end, last = list[str](), 0, -1
        for fix in sorted(set(fixes), key=self._offset):
            at = self._offset(fix)
            if at < end or at == last or not self.text.startswith(fix.old, at):
                raise EditConflict(f"{fix.file}:{fix.line}: cannot replace {fix.old!r} at column {fix.column}")
            pieces += (self.text[end:at], fix.new)
            end, last = at + len(fix.old), at
        return PyFile(self.path, "".join(pieces) + self.text[end:], self.encoding)

    def _offset(self, fix: Fix) -> int:
        """The offset of an edit in the text; past its end for a line that the file does not have."""
        return self.starts[fix.line - 1] + fix.column if fix.line <= len(self.starts) else len(self.text) + 1

    def sources(self, name: str, line: int) -> list[ast.Call]:
        """The calls `S(name, …)` that may have created a source: those of the statement at `line`, else of the file."""
        called = _names_of_s(self.tree)
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and node.args]
        fitting = [call for call in calls if _last_name(call.func) in called and _spells(call.args[0], name)]
        near = {id(node) for statement in self._statements(line) for node in ast.walk(statement)}
        return [call for call in fitting if id(call) in near] or fitting

    def strings(self, function: str, keyword: str) -> Iterator[ast.Constant]:
        """The strings inside one keyword argument of the calls of a function."""
        for call in (node for node in ast.walk(self.tree) if isinstance(node, ast.Call)):
            for given in call.keywords if _last_name(call.func) == function else ():
                if given.arg == keyword:
                    found = (node for node in ast.walk(given.value) if isinstance(node, ast.Constant))
                    yield from (node for node in found if isinstance(node.value, str))

    def _statements(self, line: int) -> Iterator[ast.stmt]:
        """The simple statements that contain a line."""
        statements = (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
        return (node for node in statements if node.lineno <= line <= (node.end_lineno or node.lineno))


def _names_of_s(tree: ast.Module) -> set[str]:
    """The file's own names of `S`."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {"S"} | {alias.asname for node in imports for alias in node.names if alias.name == "S" and alias.asname}


def _last_name(function: ast.expr) -> str:
    """`S` of `S(…)` and of `expr.S(…)`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _spells(node: ast.expr, name: str) -> bool:
    """Whether a string, or an f-string with some values, is this name."""
    return bool(re.fullmatch("".join(f"({re.escape(p)})" if k else "(.*)" for p, k in pieces(node)), name))


def pieces(node: ast.expr) -> list[tuple[str, bool]]:
    """The text of a string as (text, True), the values of an f-string as ("", False); other nodes are one value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.value, True)]
    if isinstance(node, ast.JoinedStr):
        return [(str(p.value), True) if isinstance(p, ast.Constant) else ("", False) for p in node.values]
    return [("\0", True)]  # occurs in no name
