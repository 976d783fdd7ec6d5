"""The installed package as an input of all results: its relevant files, and the distributions that it uses.

Every Python file of the package is an input, with two exceptions. `cli` and `render` display results: no code that
computes one imports them. The files of a family, its graph and its adapter, are inputs where they are used: `sources`
finds them by the imports of the model's own files, because no other file of the package imports them. Data files are
help pages, styles and a table of measurements, on which no result depends.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bringup import __version__
from bringup.graphs.registry import FAMILIES

APART = ("bringup/cli", "bringup/render")
_PARTS = ("graphs", "adapters", "compile")  # separate packages, wherever they are installed

# The distributions that compute weights, trace programs, or contribute to the rest of a bundle.
COMPUTING = ("numpy", "ml_dtypes", "gguf")
TRACING = (*COMPUTING, "torch", "torch-mlir")
BUNDLING = (*TRACING, "iree-base-compiler", "iree-base-runtime", "tokenizers", "jinja2")


@cache
def tools(names: tuple[str, ...]) -> str:
    """This package, Python and distributions, each with its version, if installed."""
    return ", ".join([f"bringup {__version__}", f"python {platform.python_version()}", *_versions(names)])


def _versions(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def name_of(file: Path) -> str:
    """`graphs/layers/linear.py`, `bringup/spec.py`; "" for a file that is not of this package."""
    for name, folder in _folders().items():
        start = f"{folder}/"
        if str(file).startswith(start):
            return f"{name}/{str(file).removeprefix(start)}"
    return ""


@cache
def engine() -> Mapping[str, Mapping[str, str]]:
    """Every file that is an input for all models: by top-level folder, its path by name.

    Raises OSError if the package is not installed as files.
    """
    found = {name: path for part, folder in _folders().items() for name, path in _below(part, str(folder))}
    grouped: dict[str, dict[str, str]] = {}
    for name, path in sorted(found.items()):
        if name not in family_files():
            grouped.setdefault(name.partition("/")[0], {})[name] = path
    return grouped


@cache
def family_files() -> frozenset[str]:
    """The files of the built-in families, by name."""
    places = (place for family in FAMILIES for place in (family.graph, family.config, family.adapter, family.dialect))
    modules = (place.partition(":")[0] for place in places if isinstance(place, str))
    return frozenset(module.removeprefix("bringup.").replace(".", "/") + ".py" for module in modules)


@cache
def _folders() -> Mapping[str, Path]:
    """The package's parts first: if they are not below the package itself, links to them may be."""
    modules = {part: f"bringup.{part}" for part in _PARTS} | {"bringup": "bringup"}
    return {part: Path(import_module(module).__file__ or "").resolve().parent for part, module in modules.items()}


def _below(name: str, folder: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            inner = f"{name}/{entry.name}"
            if entry.name.endswith(".py"):
                yield inner, entry.path
            elif (
                entry.is_dir(follow_symlinks=False)
                and inner not in APART
                and inner.removeprefix("bringup/") not in _PARTS
            ):
                yield from _below(inner, entry.path)
