"""Whether a file belongs to an installed package or to the user."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

_LIBRARIES = ("lib", "lib64", "Lib")  # folders with the packages of a virtual environment: Python's `venv`


def is_installed(path: Path) -> bool:
    """Whether a resolved path is in the libraries of this interpreter or of a virtual environment.

    A virtual environment is a folder with a pyvenv.cfg (PEP 405). Other names of folders do not matter: a repository
    may have its own `site-packages`.
    """
    return any(path.is_relative_to(place) for place in _libraries()) or any(
        (folder.parent / "pyvenv.cfg").is_file() for folder in path.parents if folder.name in _LIBRARIES
    )


@cache
def _libraries() -> frozenset[Path]:
    return frozenset(Path(place).resolve() for name, place in sysconfig.get_paths().items() if "lib" in name)
