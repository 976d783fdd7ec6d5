"""The statements of transformers' code that run for a config, as texts with the config keys of attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bringup.compile.draft.modelling.decided import UNKNOWN, decided, set_in


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

    def forget(self, node: ast.AST) -> None:
        """The values of what a node assigns are no longer known."""
        for name in set_in(node):
            self.known.pop(name, None)


def live_statements(
    body: list[ast.stmt], keys: Mapping[str, str], values: Values, *, marks: bool = False, certain: bool = True
) -> Iterator[str]:
    """The statements that can run; a test that the config does not decide is a statement `if …`. `marks`: with the
    statements `else` and `end` of such a test. `certain`: whether all run, so that a variable is None after it is set
    to None."""
    for node in body:
        if isinstance(node, ast.If):
            test = _Keys(keys).visit(ast.parse(ast.unparse(node.test), mode="eval")).body
            value = decided(test, values.config, values.known)
            sure = certain and value is not UNKNOWN
            if value is UNKNOWN:
                yield f"if {text_of(node.test, keys)}"
            yield from live_statements(node.body if value is not False else [], keys, values, marks=marks, certain=sure)
            if marks and value is UNKNOWN and node.orelse:
                yield "else"
            yield from live_statements(
                node.orelse if value is not True else [], keys, values, marks=marks, certain=sure
            )
            if marks and value is UNKNOWN:
                yield "end"
        elif isinstance(node, ast.For | ast.While | ast.With | ast.FunctionDef):
            values.forget(node)
            yield from live_statements(node.body, keys, values, marks=marks, certain=False)
        elif isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.AnnAssign) or (
            isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
        ):
            values.forget(node)
            if certain and isinstance(node, ast.Assign) and ast.unparse(node.value) == "None":
                values.known[ast.unparse(node.targets[0])] = None
            yield text_of(node, keys)
