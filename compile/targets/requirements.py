"""Distributions that targets require: their installed versions, and the commands that install them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.targets.registry import Registered

EXTRAS = {"triton": "gpu", "cuda-bindings": "gpu", "llvmlite": "llvm"}  # the smallest extra; others: `compile`


def installed(name: str) -> str:
    """The version of an installed distribution, or ""."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def check_installed(registered: Registered, names: Iterable[str]) -> None:
    """Raises BU922 for one of these distributions that the target requires and that is not installed."""
    for name in names:
        if not installed(name):
            message = f"target `{registered.target.name}` requires `{name}`, which is not installed"
            package = name if registered.package else f"'bringup[{EXTRAS.get(name, 'compile')}]'"
            raise fail("BU922", message, help=f"run: pip install {package}")
