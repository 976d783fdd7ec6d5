"""The code that a checkpoint has for its own architecture (`auto_map` of config.json): it is parsed, and never run.

Questions quote its statements. They do not become rules or statements of a draft, as those of transformers do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bringup.compile.draft.modelling.decided import defaults_of
from bringup.compile.draft.modelling.parts import parts_of

MOST_BYTES = 1 << 18  # of a file; those of transformers have at most 160,000
MOST_NUMBER = 1 << 63
MODELS = ("AutoModelForCausalLM", "AutoModel")


@dataclass(frozen=True, slots=True)
class OwnCode:
    """`name` and `text` of the modelling file. `statements` are those of the classes that a model class uses, with
    the keys of the attributes. `defaults` are the constants that the config class has for absent keys."""

    name: str
    text: str
    statements: tuple[str, ...]
    defaults: Mapping[str, Any]


def own_code(raw: Mapping[str, Any], folder: Path) -> OwnCode | None:
    """The code in the folder of a checkpoint; None without a modelling file, or if it is not valid Python."""
    files = {kind: found for kind in (*MODELS, "AutoConfig") if (found := _file(raw, kind, folder))}
    model = next((files[kind] for kind in MODELS if kind in files), None)
    if model is None:
        return None
    (file, name), config = model, files.get("AutoConfig")
    try:
        defaults = dict(_defaults(*config)) if config else {}
        parts = parts_of(file, name, {**defaults, **raw})
        statements = [text for part in parts.values() for text in part.statements]
        for part in parts.values():
            computed = part.attributes.keys() - part.keys.keys()
            statements += [f"self.{each} = {part.attributes[each]}" for each in part.attributes if each in computed]
        return OwnCode(file.name, file.read_text("utf-8"), tuple(statements), defaults)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):  # of any text
        return None


def _file(raw: Mapping[str, Any], kind: str, folder: Path) -> tuple[Path, str] | None:
    """The file and the class that `auto_map` names for a class of transformers."""
    table = raw.get("auto_map")
    stated = cast("Mapping[str, Any]", table).get(kind) if isinstance(table, Mapping) else None
    match = re.fullmatch(r"(\w{1,100})\.(\w{1,100})", stated, re.ASCII) if isinstance(stated, str) else None
    file = folder / f"{match[1]}.py" if match else folder
    return (file, match[2]) if match and file.is_file() and file.stat().st_size <= MOST_BYTES else None


def _defaults(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The constants of a config class by key: of its attributes, and of the arguments of `__init__`."""
    for node in ast.parse(file.read_text("utf-8")).body:
        for each in node.body if isinstance(node, ast.ClassDef) and node.name == name else []:
            pairs = dict[str, Any]()
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                pairs = defaults_of(each, frozenset())
            elif isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Constant):
                pairs = {ast.unparse(each.target): each.value.value}
            for key, value in pairs.items():
                if isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) < MOST_NUMBER):
                    yield key, value
