"""Which source code a traced stage depends on: the files that define its classes, and all that these import.

A forward that belongs to another stage of the model is left out of its file, so that editing one layer's forward
leaves the embedding's and the head's stages as they are. Everything else in a file counts, comments too.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bringup import STARTED
from bringup.userfiles import beside


class Body(NamedTuple):
    """A function's body, by file and qualified name: `Block.forward`."""

    file: Path
    name: str


def body_of(kind: type, method: str) -> Body:
    """A method's body, as a class itself would define it."""
    return Body(file_of(kind), f"{kind.__qualname__}.{method}")


@cache
def file_of(kind: type) -> Path:
    """The file that defines a class; one that runpy ran has no module to ask."""
    made = next((f.__code__.co_filename for f in vars(kind).values() if hasattr(f, "__code__")), "")
    return Path(made or sys.modules[kind.__module__].__file__ or "").resolve()


def digests(files: Iterable[Path], left_out: Collection[Body] = ()) -> dict[str, str] | None:
    """What identifies some source files and all that they import, ours and the user's: {`source graphs/gpt2.py`: …}.

    Of installed packages, {`package torch`: its version}; those whose name is not their distribution's are read too.
    None when a file has changed since this process began: what runs here may be what it was before.
    """
    found: dict[str, str] = {}
    waiting = list(dict.fromkeys(file.resolve() for file in files))
    seen = set(waiting)
    while waiting:
        file = waiting.pop()
        if file.stat().st_mtime > STARTED:
            return None
        bodies: frozenset[str] = frozenset(body.name for body in left_out if body.file == file)
        name = f"source {file.parent.name}/{file.name}"
        found[name] = found.get(name, "") + _digest(file, bodies)
        for module in _imports(file):
            place = beside(file, module) or _place(module)
            if isinstance(place, str):
                found[f"package {module.partition('.')[0]}"] = place
            elif place and place not in seen:
                seen.add(place)
                waiting.append(place)
    return found


def source_of(module: str) -> str:
    """What identifies the source of one module of ours, without what it imports."""
    place = _place(module)
    assert isinstance(place, Path), module
    return _digest(place)


@cache
def _place(module: str) -> Path | str | None:
    """The file of a module to be read; the version of the package that holds it; None when there is nothing to tell."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    top = module.partition(".")[0]
    if not top or top in sys.stdlib_module_names:  # a relative import of an installed package
        return None
    if top != "bringup":
        try:
            return version(top)
        except PackageNotFoundError:
            pass
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # a name in a module, not a module; `__main__`
        return None
    return Path(spec.origin).resolve() if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _parsed(file: Path) -> tuple[str, ast.Module]:
    text = file.read_text("utf-8")
    return text, ast.parse(text)


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """Every module that a file may import, with the dots of a relative import; for `from a import b` also `a.b`."""
    names: dict[str, None] = {}
    for node in ast.walk(_parsed(file)[1]):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            names |= dict.fromkeys([start, *(f"{start}{dot}{alias.name}" for alias in node.names)])
    return tuple(names)


@cache
def _digest(file: Path, left_out: frozenset[str] = frozenset()) -> str:
    """Of a file's text without the bodies that are left out."""
    text, tree = _parsed(file)
    gone = {line for name, lines in _bodies(tree, "") if name in left_out for line in lines}
    kept = (line for number, line in enumerate(text.splitlines(), 1) if number not in gone)
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def _bodies(node: ast.AST, prefix: str) -> Iterator[tuple[str, range]]:
    """Qualified name and lines of every function's body."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
        elif isinstance(child, ast.ClassDef):
            yield from _bodies(child, f"{prefix}{child.name}.")
