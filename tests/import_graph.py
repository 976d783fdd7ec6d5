"""Prints the import graph, folder by folder from the bottom up. Fails if it has a cycle.

A node is a folder. Each file of `bringup/` and `compile/` themselves is a node. Imports inside functions and for type
checkers count. The imports of a facade (`__init__.py`) do not: they only repeat names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAPPED = ("graphs", "adapters", "compile")


def sources() -> dict[str, Path]:
    """Every module of the package with its file. `graphs/`, `adapters/` and `compile/` are links in `bringup/`."""
    found: dict[str, Path] = {}
    for top in ("bringup", *MAPPED):
        for file in sorted((ROOT / top).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if top == "bringup" and parts[1] in MAPPED:
                continue
            name = ".".join(parts if top == "bringup" else ("bringup", *parts))
            found[name.removesuffix(".__init__")] = file
    return found


def node_of(file: Path) -> str:
    path = file.relative_to(ROOT)
    return str(path if str(path.parent) in ("bringup", "compile") else path.parent)


@cache
def imports(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """The statements of a file that import something."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(file: Path, modules: dict[str, Path]) -> Iterator[Path]:
    """The files of the package that a file imports."""
    for node in imports(file):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                inner if (inner := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            ]
        yield from (modules[name] for name in names if name in modules)


def graph() -> dict[str, set[str]]:
    """Each node with those that it imports."""
    modules = sources()
    found: dict[str, set[str]] = {node_of(file): set() for file in modules.values()}
    for file in modules.values():
        if file.name != "__init__.py":
            found[node_of(file)] |= {node_of(other) for other in imported(file, modules)} - {node_of(file)}
    return found


def purpose(node: str) -> str:
    """The first line of a file's docstring, of a folder's `__init__.py`."""
    file = ROOT / node if node.endswith(".py") else ROOT / node / "__init__.py"
    return (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]


def main() -> None:
    found = graph()
    try:
        order = list(TopologicalSorter(found).static_order())
    except CycleError as error:
        sys.exit(f"imports form a cycle: {' <- '.join(error.args[1])}")
    for node in order:
        print(f"{node}: {purpose(node)}")
        if found[node]:
            print(f"    imports {', '.join(sorted(found[node]))}")


if __name__ == "__main__":
    main()
