"""Python files that a user gives. Modules beside such a file can be imported by it, as Python allows a script.

https://docs.python.org/3/library/sys_path_init.html puts a script's folder first on sys.path, for everybody. Here the
import statement of the user's own files looks into their folder first, whenever it runs: sys.path stays as it is, what
is installed means itself to everybody else, and `helpers` of one folder is not `helpers` of another.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

SIBLING = "bringup_sibling_"
_folders: dict[str, Path] = {}  # package of a folder's modules → the folder
_states: dict[str, tuple[int, int, int]] = {}  # module → what changes when its file does, as it was run


def run(path: Path) -> ModuleType:
    """Runs a file as a module of its folder; modules beside it that changed since they were run are run anew.

    Raises what the file raises.
    """
    package = _package_of(path)
    if any(_state(name) != state for name, state in _states.items() if name.startswith(f"{package}.")):
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
            _states.pop(name, None)
    name = f"{package}.{path.stem}"
    file = os.path.abspath(path)  # noqa: PTH100  links stay: it is the name that findings show
    spec = spec_from_file_location(name, file, loader=_Loader(name, file))
    assert spec, "a loader is given"
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up there
    try:
        _Loader(name, file).exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def builtins_of(path: Path) -> dict[str, Any]:
    """`__builtins__` for code of a user's file: those of Python, with an import that looks beside the file first."""
    package = _package_of(path)
    return vars(builtins) | {"__import__": _importing(package, _folders[package])}


def folders_of(file: Path) -> list[Path]:
    """The folders, of users' files that were run, which a file is in or below: its imports may look there first."""
    return [folder for folder in _folders.values() if file.is_relative_to(folder)]


def _package_of(path: Path) -> str:
    """The package that stands for a file's folder; links are followed, as for a script."""
    import hashlib  # 3 ms, for those who give a file

    folder = path.resolve().parent
    name = SIBLING + hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    if name not in _folders:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name], _folders[name] = package, folder
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
    return name


def _is_sibling(folder: Path, name: str) -> bool:
    """Whether a folder has a module of that name. bringup and Python's own modules always mean themselves."""
    if not name or name == "bringup" or name in sys.stdlib_module_names:
        return False
    if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
        return True
    return (folder / name).is_dir() and name not in sys.modules and find_spec(name) is None  # a namespace package


def _importing(package: str, folder: Path) -> Any:
    """What the import statement calls, with the arguments of `builtins.__import__`."""

    def import_sibling(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not _is_sibling(folder, top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = import_module(f"{package}.{name}")
        for item in fromlist or ():
            if item != "*" and not hasattr(module, item) and hasattr(module, "__path__"):
                inner = f"{package}.{name}.{item}"
                if find_spec(inner):
                    import_module(inner)
        return module if fromlist else sys.modules[f"{package}.{top}"]

    return import_sibling


class _Loader(SourceFileLoader):
    """Runs a user's module with its own import."""

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _importing(package, _folders[package])}
        stat = os.stat(self.path)  # noqa: PTH116  a text, which needs no Path
        _states[module.__name__] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        super().exec_module(module)


class _Finder:
    """Finds the modules of users' folders by their private names, and nothing else."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if not fullname.startswith(SIBLING):
            return None
        spec: ModuleSpec | None = PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _state(name: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(getattr(sys.modules[name], "__file__", None) or "")  # noqa: PTH116  a text, which needs no Path
    except (KeyError, OSError):
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
