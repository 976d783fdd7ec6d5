"""A page for every code: what it means, why it matters, an example, the fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent


def titles() -> Mapping[str, str]:
    """Every code with its name: `BU102` → `shape-mismatch`."""
    lines = (path.open(encoding="utf-8").readline() for path in sorted(FOLDER.glob("BU*.md")))
    return {code: name for _, code, name in (line.split() for line in lines)}


def page(subject: str) -> str | None:
    """The page of a code, or of its name; None when there is none."""
    wanted = subject.lower()
    for code, name in titles().items():
        if wanted in (code.lower(), name):
            return (FOLDER / f"{code}.md").read_text("utf-8")
    return None
