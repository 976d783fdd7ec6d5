"""Python files of the user. Such a file can import the modules next to it, as a script can.

https://docs.python.org/3/library/sys_path_init.html puts a script's folder first on sys.path, for all modules. Here the
import statement of the user's own files searches their folder first, whenever it runs: sys.path is not changed, other
modules import installed packages as before, and `helpers` of one folder is not `helpers` of another.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

SIBLING = "bringup_sibling_"
_folders: dict[str, Path] = {}  # package of a folder's modules → the folder
_State = tuple[str, int, int, int]  # a module's file, and its stat fields when it was run
_states: dict[str, _State] = {}
_imports: dict[str, set[str]] = {}  # module → the modules of its folder that it has imported
_files_run: set[str] = set()  # modules that were run as files, not imported
_in_use: set[str] = set()  # those of them that the user named, or that a checkpoint was opened with


def run(path: Path) -> ModuleType:
    """Runs a file as a module of its folder; modules next to it that changed since they were run are run again.

    Raises the errors of the file.
    """
    module = _run(path, _fresh_package_of(path))
    _in_use.add(module.__name__)
    return module


def _run(path: Path, package: str) -> ModuleType:
    name = f"{package}.{path.stem}"
    _files_run.add(name)
    file = os.path.abspath(path)  # noqa: PTH100  links stay: it is the name that findings show
    spec = spec_from_file_location(name, file, loader=_Loader(name, file))
    assert spec, "a loader is given"
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses find their module there
    try:
        _Loader(name, file).exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def module_of(path: Path) -> ModuleType:
    """The module of a file as it was run or imported; run again if a module of its folder has changed since.

    Raises the errors of the file.
    """
    package = _fresh_package_of(path)
    module = sys.modules.get(f"{package}.{path.stem}")
    place = getattr(module, "__file__", None)
    return module if module and place and Path(place).resolve() == path.resolve() else _run(path, package)


def use(module: ModuleType) -> None:
    """Records that a model uses this module: the modules that it imports, and that import it, are related to it."""
    _in_use.add(module.__name__)


def defining(family: object) -> ModuleType | None:
    """The module of a user's file whose `family` is this object."""
    modules = (sys.modules.get(each) for each in _files_run)
    return next((module for module in modules if module and vars(module).get("family") is family), None)


def unrelated(files: Collection[Path]) -> set[str]:
    """The loaded modules of users' folders that are not related to the modules of `files`: those of other models.

    Related modules are those that these import, directly or not; the files in use that import them, with all that those
    import; and modules without recorded imports. A package is related as a whole.
    """
    modules = {name: module for name, module in list(sys.modules.items()) if name.startswith(SIBLING) and "." in name}
    places = {name: getattr(module, "__file__", None) for name, module in modules.items()}
    own = {name for name, place in places.items() if place and Path(place).resolve() in files}
    related = _reached(own | {name for name in _in_use if _reached({name}) & own})
    known = {_top(name) for name in _files_run.union(*_imports.values())}
    return {name for name in modules if _top(name) in known - {_top(each) for each in related}}


def _reached(names: Collection[str]) -> set[str]:
    """Modules, and those that they import, directly or not."""
    found, waiting = set(names), list(names)
    while waiting:
        more = _imports.get(waiting.pop(), set[str]()) - found
        found |= more
        waiting += more
    return found


def _top(name: str) -> str:
    return ".".join(name.split(".")[:2])


def builtins_of(path: Path) -> dict[str, Any]:
    """`__builtins__` for code of a user's file: Python's, with an import that searches the file's folder first."""
    package = _package_of(path)
    return vars(builtins) | {"__import__": _importing(f"{package}.{path.stem}", _folders[package])}


def folders_of(file: Path) -> list[Path]:
    """The folders of users' files that were run and that contain a file: its imports may search there first."""
    folders = set(_folders.values())
    return [folder for folder in file.parents if folder in folders]


def _package_of(path: Path) -> str:
    """The package for a file's folder; links are followed, as for a script."""
    import hashlib  # takes 3 ms, only if a file is passed

    folder = path.resolve().parent
    name = SIBLING + hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    if name not in _folders:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name], _folders[name] = package, folder
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)
    return name


def _fresh_package_of(path: Path) -> str:
    """The package of a file's folder, without its modules if one of these has changed since it was run."""
    package = _package_of(path)
    if any(_state(state[0]) != state for name, state in _states.items() if name.startswith(f"{package}.")):
        for name in [name for name in {**sys.modules, **_states} if name.startswith(f"{package}.")]:
            sys.modules.pop(name, None)
            _states.pop(name, None)
            _imports.pop(name, None)
    return package


def _is_sibling(folder: Path, name: str) -> bool:
    """Whether a folder has a module of that name. bringup and Python's own modules always take precedence."""
    if not name or name == "bringup" or name in sys.stdlib_module_names:
        return False
    if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
        return True
    return (folder / name).is_dir() and name not in sys.modules and find_spec(name) is None  # a namespace package


def _importing(importer: str, folder: Path) -> Any:
    """The function for the import statement of a module, with the arguments of `builtins.__import__`."""
    package = importer.partition(".")[0]

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
        _imports.setdefault(importer, set()).add(f"{package}.{name}")
        module = import_module(f"{package}.{name}")
        for item in fromlist or ():
            if item != "*" and not hasattr(module, item) and hasattr(module, "__path__"):
                inner = f"{package}.{name}.{item}"
                if find_spec(inner):
                    _imports[importer].add(inner)
                    import_module(inner)
        return module if fromlist else sys.modules[f"{package}.{top}"]

    return import_sibling


class _Loader(SourceFileLoader):
    """Runs a user's module with its own import."""

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        module.__dict__["__builtins__"] = vars(builtins) | {
            "__import__": _importing(module.__name__, _folders[package])
        }
        if state := _state(self.path):
            _states[module.__name__] = state
        super().exec_module(module)


class _Finder:
    """Finds the modules of users' folders by their private names only."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if not fullname.startswith(SIBLING):
            return None
        spec: ModuleSpec | None = PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _state(file: str) -> _State | None:
    try:
        stat = os.stat(file)  # noqa: PTH116  a text, which needs no Path
    except OSError:
        return None
    return (file, stat.st_mtime_ns, stat.st_size, stat.st_ino)
