"""Private words in identifiers, messages and pages: CONTRIBUTING.md has the field's terms for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

PRIVATE = frozenset({"told", "made", "asked", "kept", "beside", "mine", "meant"})
OF_PACKAGES = PRIVATE | {"said", "turned"}  # identifiers of the package only
PHRASES = re.compile(
    r"\b(?:in few bits|whole numbers?|side by side|anew|nobody|goes on where|words of (?:the|its) config)\b",
    re.IGNORECASE,
)
# The field of each node with an identifier that the file chooses.
NAMED_BY = {
    ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.alias: "asname", ast.keyword: "arg", ast.MatchAs: "name",
    ast.ExceptHandler: "name", ast.FunctionDef: "name", ast.ClassDef: "name",
}  # fmt: skip
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = re.compile(r"\b[a-z]+\b")


def identifiers(tree: ast.AST, private: frozenset[str] = OF_PACKAGES) -> Iterator[tuple[int, str]]:
    """(line, name) of every identifier with a private word between underscores or capitals."""
    for node in ast.walk(tree):
        name = getattr(node, NAMED_BY.get(type(node), ""), None)
        if name and private & _parts(name):
            yield getattr(node, "lineno", 0), name


@cache
def _parts(name: str) -> frozenset[str]:
    """The words of an identifier, in lower case."""
    return frozenset(part.lower() for part in _PART.findall(name))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every string of several words with a private one: messages, fixes, help texts of commands.

    Docstrings are left out, except those of commands, which `--help` prints.
    """
    nodes = list(ast.walk(tree))
    docstrings = {id(node) for node in _docstrings(nodes)}
    notes = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # below attributes
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and " " in text.strip():
                if PRIVATE & set(_WORD.findall(text.lower())) or (id(node) not in notes and PHRASES.search(text)):
                    yield node.lineno, text
            case _:
                pass


def phrases(page: str) -> Iterator[str]:
    """Every private phrase in the prose of a Markdown page; blocks of code are left out."""
    for number, part in enumerate(page.split("```")):
        if not number % 2:
            yield from PHRASES.findall(" ".join(part.split()))


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        match node:
            case ast.FunctionDef(decorator_list=decorators, body=[ast.Expr(value=ast.Constant() as text), *_]):
                if not any("command" in ast.unparse(decorator) for decorator in decorators):
                    yield text
            case ast.Module(body=[ast.Expr(value=ast.Constant() as text), *_]):
                yield text
            case ast.ClassDef(body=[ast.Expr(value=ast.Constant() as text), *_]):
                yield text
            case _:
                pass
