"""Properties of a configuration class that divide one key by another, from the text of the class."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def quotient_of(kind: Any, name: str) -> tuple[str, str] | None:
    """The two keys of a property whose only statement returns their quotient; None for anything else."""
    found = getattr(kind, name, None)
    if not isinstance(found, property) or found.fget is None:
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(found.fget))).body[0]
    body = tree.body if isinstance(tree, ast.FunctionDef) else []
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)):
        return None
    both = ast.unparse(value.left), ast.unparse(value.right)
    if not all(text.startswith("self.") and text.removeprefix("self.").isidentifier() for text in both):
        return None
    return both[0].removeprefix("self."), both[1].removeprefix("self.")
