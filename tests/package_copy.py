"""A copy of the package that a test may change. The files of the checkout are in the cache keys of other processes."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("bringup", "graphs", "adapters", "compile", "docs")


def files() -> dict[str, Path]:
    """Every file of the package that a wheel has, by its part's name and the path in it."""
    found: dict[str, Path] = {}
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*")):
            inner = path.relative_to(ROOT / part)
            linked = part == "bringup" and inner.parts[0] in PARTS
            left_out = "__pycache__" in inner.parts or (part == "docs" and path.suffix != ".md")
            if path.is_file() and not linked and not left_out:
                found[f"{part}/{inner.as_posix()}"] = path
    return found


def installed(folder: Path) -> Path:
    """The package as a wheel lays it out."""
    for part in PARTS:
        target = folder / "bringup" if part == "bringup" else folder / "bringup" / part
        for name, path in files().items():
            if name.startswith(f"{part}/"):
                place = target / name.removeprefix(f"{part}/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
    return folder
