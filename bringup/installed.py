"""Which files belong to an installed package, and which are somebody's own."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

_LIBRARIES = ("lib", "lib64", "Lib")  # where a virtual environment has its packages: Python's `venv`


def is_installed(path: Path) -> bool:
    """Whether a resolved path lies among this interpreter's libraries, or among those of a virtual environment.

    A virtual environment is a folder with a pyvenv.cfg (PEP 405). Names of folders decide nothing: a repository may
    have a `site-packages` of its own.
    """
    return any(path.is_relative_to(place) for place in _libraries()) or any(
        (folder.parent / "pyvenv.cfg").is_file() for folder in path.parents if folder.name in _LIBRARIES
    )


@cache
def _libraries() -> frozenset[Path]:
    return frozenset(Path(place).resolve() for name, place in sysconfig.get_paths().items() if "lib" in name)
