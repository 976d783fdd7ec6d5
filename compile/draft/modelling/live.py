"""The statements of transformers' code that run for a config, as texts with the config keys of attributes."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bringup.compile.draft.modelling.decided import UNKNOWN, blocks_of, chosen, decided, one_of, set_in


def is_key(text: str) -> bool:
    return text.removeprefix("config.").removesuffix("[layer_idx]").isidentifier()


class _Keys(ast.NodeTransformer):
    """Replaces attributes by the config keys of the same value."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.keys = keys

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = ast.unparse(node)
        if text.startswith("self.config."):
            return ast.parse(text.removeprefix("self."), mode="eval").body
        if text.startswith("self.") and (key := self.keys.get(node.attr)) and isinstance(node.value, ast.Name):
            return ast.parse(key, mode="eval").body
        return self.generic_visit(node)


def with_keys(node: ast.AST, keys: Mapping[str, str]) -> ast.Module:
    """A copy of a node with the config keys of attributes."""
    return _Keys(keys).visit(ast.parse(ast.unparse(node)))


def text_of(node: ast.AST, keys: Mapping[str, str]) -> str:
    return ast.unparse(with_keys(node, keys))


@dataclass(frozen=True, slots=True)
class Values:
    """The values of config keys, and of attributes, by `self.NAME`, and variables as far as they are known."""

    config: Mapping[str, Any]
    known: dict[str, Any]

    @property
    def absent(self) -> Mapping[str, Any]:
        """The variables that are None."""
        return {name: None for name, value in self.known.items() if value is None and name.isidentifier()}

    def forget(self, node: ast.AST) -> None:
        """The values of what a node assigns are no longer known."""
        for name in set_in(node):
            self.known.pop(name, None)


def live_statements(
    body: list[ast.stmt], keys: Mapping[str, str], values: Values, *, marks: bool = False
) -> Iterator[str]:
    """The statements that can run; a test that the config does not decide is a statement `if …`, and so are `match …`
    and `try`. `marks`: with the statements `else` and `end` of these."""
    return _Reading(keys, values, marks).block(body, certain=True)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Each method returns whether its statements end the function: True, False, or UNKNOWN. `certain`: whether all run
    if the function does, so that a variable is None after it is set to None."""

    keys: Mapping[str, str]
    values: Values
    marks: bool

    def block(self, body: list[ast.stmt], *, certain: bool) -> Generator[str, None, object]:
        ended: object = False
        for node in body:
            ends: object = False
            if isinstance(node, ast.If):
                ends = yield from self._branches(node, certain=certain)
            elif isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                yield from self._plain(node, certain=certain)
                ends = isinstance(node, ast.Return)
            else:
                self.values.forget(node)
                inner = yield from self._blocks(node)
                ends = False if isinstance(node, ast.FunctionDef) else inner
            if ends is True:
                return True
            ended = UNKNOWN if ends is UNKNOWN else ended
        return ended

    def _plain(self, node: ast.stmt, *, certain: bool) -> Iterator[str]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Assign) and self.values.absent:  # by the test of an input that no step has
            node = ast.copy_location(ast.Assign(node.targets, chosen(node.value, {}, self.values.absent)), node)
        self.values.forget(node)
        if certain and isinstance(node, ast.Assign) and ast.unparse(node.value) == "None":
            self.values.known[ast.unparse(node.targets[0])] = None
        yield text_of(node, self.keys)

    def _branches(self, node: ast.If, *, certain: bool) -> Generator[str, None, object]:
        test = _Keys(self.keys).visit(ast.parse(ast.unparse(node.test), mode="eval")).body
        value = decided(test, self.values.config, self.values.known)
        self.values.forget(node.test)
        ends, open_ = list[object](), value is UNKNOWN
        if open_:
            yield f"if {text_of(node.test, self.keys)}"
        for block, excluded in ((node.body, False), (node.orelse, True)):
            if value is not excluded:
                yield from ["else"] if excluded and self.marks and open_ and block else []
                ends.append((yield from self.block(block, certain=certain and not open_)))
        yield from ["end"] if self.marks and open_ else []
        return one_of(ends)

    def _blocks(self, node: ast.stmt) -> Generator[str, None, object]:
        """The statements of loops, `with`, `try`, `match` and inner functions."""
        ends: object = False
        yield from (decisions := list(_decisions(node, self.keys)))
        for block in blocks_of(node):
            inner = yield from self.block(block, certain=False)
            ends = ends if inner is False else UNKNOWN
        yield from ["end"] if self.marks and decisions else []
        return ends


def _decisions(node: ast.stmt, keys: Mapping[str, str]) -> Iterator[str]:
    """The statements `match …` and `try`, if a statement decides between blocks; those of its guards."""
    if isinstance(node, ast.Match):
        yield f"match {text_of(node.subject, keys)}"
        yield from (f"if {text_of(case.guard, keys)}" for case in node.cases if case.guard)
    elif isinstance(node, ast.Try | ast.TryStar) and node.handlers:
        yield "try"
