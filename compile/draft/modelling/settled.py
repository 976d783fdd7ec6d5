"""The keys of config.json whose value transformers' code uses only to choose statements or the shapes of tensors.

A draft has the statements of the value in the config, and the tensors have its shapes: the draft is right for this
value, and rejects others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any

from bringup.compile.draft.modelling.decided import UNKNOWN, decided
from bringup.compile.draft.modelling.inert import READ
from bringup.compile.draft.modelling.live import with_keys
from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.parts import models_folder

SHAPED = ("nn.Linear", "nn.Embedding", "nn.LayerNorm", "nn.RMSNorm", "Conv1D")  # modules whose tensors show arguments
OWN = ("self", "config", "self.config")
SILENT = ("logger.", "warnings.")


def settled_keys(parts: Mapping[str, Part], config: Mapping[str, Any]) -> frozenset[str]:
    """The keys that the code has, and for nothing else."""
    nodes = [node for part in parts.values() for function in part.functions for node in ast.walk(function)]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in OWN[1:]}
    uses = dict.fromkeys(named, True)  # no statement that runs uses a key, unless one is found
    loads = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    read = {node.attr for node in loads if ast.unparse(node.value) not in OWN[1:]}  # attributes, not keys
    read |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)} | read_of_modules()
    for part in parts.values():
        if not part.name.endswith("PreTrainedModel"):
            for key, settled in _uses(part, config, read):
                uses[key] = uses.get(key, True) and settled
    return frozenset(key for key, settled in uses.items() if settled) - _read_elsewhere(parts)


def _read_elsewhere(parts: Mapping[str, Part]) -> frozenset[str]:
    """The keys that a class copies to an attribute of a name that other classes and functions read of modules."""
    nodes = [node for part in parts.values() for function in part.functions for node in ast.walk(function)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in OWN}
    copied = [(name, text) for part in parts.values() for name, text in part.keys.items()]
    return frozenset(text.removeprefix("config.").partition("[")[0] for name, text in copied if name in read)


@cache
def read_of_modules() -> frozenset[str]:
    """The names that transformers' implementations of attention and caches read of modules."""
    folder = models_folder()
    package = folder.parent if folder else Path()
    files = [*package.glob("integrations/*.py"), *package.glob("modeling_*.py"), package / "cache_utils.py"]
    return frozenset(
        word for file in files if file.is_file() for both in READ.findall(file.read_text("utf-8")) for word in both
    )


def _uses(part: Part, config: Mapping[str, Any], read: Set[str]) -> Iterator[tuple[str, bool]]:
    """Each use of a key in the code that this config runs, and whether it is settled."""
    for function in part.functions:
        visitor = _Uses(config, part.known, read)
        for node in function.body:
            visitor.visit(with_keys(node, part.keys))
        yield from visitor.found


class _Uses(ast.NodeVisitor):
    def __init__(self, config: Mapping[str, Any], known: Mapping[str, Any], read: Set[str]) -> None:
        self.config, self.known, self.read = config, known, read
        self.found: list[tuple[str, bool]] = []
        self.settled = False

    def visit_If(self, node: ast.If) -> None:
        self._branches(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._branches(node.test, [node.body], [node.orelse])

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assigned(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self._assigned([node.target], node.value)

    def _assigned(self, targets: list[ast.expr], value: ast.expr) -> None:
        """A copy of a key is no use if every later read of the attribute is one: then the target is this key too."""
        if all(isinstance(each, ast.Attribute) and each.attr not in self.read for each in targets):
            return  # no code reads the attribute
        key = ast.unparse(value)
        is_key = isinstance(value, ast.Attribute) and key.startswith("config.")
        if not (is_key and all(ast.unparse(target) == key for target in targets)):
            self.visit(value)

    def visit_Call(self, node: ast.Call) -> None:
        text = ast.unparse(node.func)
        if text.startswith(SILENT):
            return
        if text == "getattr" and len(node.args) > 1 and ast.unparse(node.args[0]) in OWN[1:]:
            name = node.args[1]
            self.found.append((str(name.value) if isinstance(name, ast.Constant) else "", False))
        before, self.settled = self.settled, self.settled or text in SHAPED
        self.generic_visit(node)
        self.settled = before

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Attribute(self, node: ast.Attribute) -> None:
        text = ast.unparse(node).removeprefix("self.")
        if text.startswith("config.") and text.removeprefix("config.").isidentifier():
            self.found.append((text.removeprefix("config."), self.settled))
        else:
            self.generic_visit(node)

    def _branches(self, test: ast.expr, body: list[Any], others: list[Any]) -> None:
        value = decided(test, self.config, self.known)
        before, self.settled = self.settled, self.settled or value is not UNKNOWN or _raises(body)
        self.visit(test)
        self.settled = before
        for node in (*(body if value is not False else ()), *(others if value is not True else ())):
            self.visit(node)


def _raises(body: list[Any]) -> bool:
    """Whether a branch only rejects a config, or writes to a log."""
    calls = [ast.unparse(node) for node in body]
    return all(text.startswith(("raise ", *SILENT)) for text in calls)
