"""The imports of a source file: other source files, and distributions, which are identified by their version."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from bringup import userfiles
from bringup.compile.cache.engine_files import name_of
from bringup.compile.cache.text_digests import digest_of, parsed

_INSTALLED = ("site-packages", "dist-packages")


class Imports(NamedTuple):
    """`files` are read; `versions` are of distributions, which are not: {`package numpy`: `2.3`}."""

    files: list[Path]
    versions: dict[str, str]


def imported(file: Path) -> Imports:
    """All imports of a file, wherever in it they are.

    A name of a module next to the file includes that module, because a script's folder is searched first; so does one
    in the folder of the user's file that it belongs to (bringup.userfiles). Modules of the same top-level package are
    read, installed or not. Raises as `text_digests.parsed` does.
    """
    found = Imports([], {})
    if file.suffix != ".py":
        return found
    folders = {file.parent: None} | dict.fromkeys(userfiles.folders_of(file))
    for module, level in _names(file, digest_of(file)):
        if level:
            found.files.extend(_sibling_files(file.parents[level - 1], module))
            continue
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top != "bringup":
            for folder in folders:
                found.files.extend(_sibling_files(folder, module))
        version = None if top == "bringup" or _is_within(file, top) else _version(top)
        if version is None:
            found.files.extend(_places(module))
        else:
            found.versions[f"package {top}"] = version
    return found


def loaded_below(folders: Collection[Path], files: Collection[Path]) -> list[Path]:
    """The files of modules that this process has loaded from these folders, except those of installed packages.

    Modules of users' files that are not related to `files` are excluded (userfiles.unrelated): another model's file in
    the same folder, which may have been run to list the families of the folder.
    """
    roots = tuple(f"{folder}/" for folder in folders)
    if not roots:
        return []
    others = userfiles.unrelated(files)
    modules = [
        module for name, module in list(sys.modules.items()) if type(module) is ModuleType and name not in others
    ]
    places = {place for module in modules if isinstance(place := vars(module).get("__file__"), str)}
    found = (Path(place) for place in sorted(places) if place.startswith(roots))
    return [file for file in found if not is_installed(file) and not name_of(file.resolve())]


@cache
def _names(file: Path, digest: str) -> tuple[tuple[str, int], ...]:
    """Every module that a file with this digest may import, with the level of a relative import.

    For `from a import b` also `a.b`.
    """
    found: dict[tuple[str, int], None] = {}
    for node in ast.walk(parsed(file)[1]):
        if isinstance(node, ast.Import):
            found |= {(alias.name, 0): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = [node.module] if node.module else []
            names = [start, *([*start, alias.name] for alias in node.names)]
            found |= {(".".join(name), node.level): None for name in names}
    return tuple(found)


def _sibling_files(folder: Path, module: str) -> Iterator[Path]:
    """The files of a module in a folder, and of its parent packages."""
    yield from _existing(folder / "__init__.py") if not module else ()
    for part in module.split(".") if module else ():
        yield from _existing(folder / f"{part}.py")
        folder /= part
        yield from _existing(folder / "__init__.py")


def _existing(file: Path) -> Iterator[Path]:
    if file.is_file():
        yield file.resolve()


@cache
def _places(module: str) -> tuple[Path, ...]:
    """The files of a module, and of its parent packages, as Python finds them. () for a built-in one."""
    found: list[Path] = []
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        try:
            spec = find_spec(".".join(parts[:count]))
        except (ImportError, ValueError, AttributeError):  # a name in a module, not a module; `__main__`
            break
        if spec and spec.origin and spec.has_location:
            found.append(Path(spec.origin).resolve())
    return tuple(found)


@cache
def _version(top: str) -> str | None:
    """The version of the distribution of that name; None if there is none, or if it is an editable installation."""
    try:
        package = distribution(top)
    except PackageNotFoundError:
        return None
    return None if _is_working_copy(package) else package.version


def _is_working_copy(package: Distribution) -> bool:
    """By https://packaging.python.org/specifications/direct-url: installed from a local folder."""
    text = package.read_text("direct_url.json")
    return bool(text) and str(json.loads(text).get("url", "")).startswith("file:")


def _is_within(file: Path, top: str) -> bool:
    return top in file.parent.parts and is_installed(file)


def is_installed(file: Path) -> bool:
    """Whether a file belongs to an installed package, by its folder's name."""
    return any(part in _INSTALLED for part in file.parts)
