"""Public names of a package whose modules are imported on first use of a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def public_names(homes: Mapping[str, str]) -> list[str]:
    """The names of {module: its names, separated by spaces}, sorted."""
    return sorted(name for names in homes.values() for name in names.split())


def lazy_dir(names: Sequence[str], module: Mapping[str, object]) -> Callable[[], list[str]]:
    """The `__dir__` of a package, for completion in an interpreter: its public names and what it has imported."""
    return lambda: sorted({*names, *module})


def lazy_import(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package: each name of `homes` is imported from its module in the package."""
    modules = {name: f"{package}.{home}" for home, names in homes.items() for name in names.split()}

    def getattr_(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        return getattr(import_module(modules[name]), name)

    return getattr_
