"""A page for every code: its meaning, its importance, an example, the fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent


def titles() -> Mapping[str, str]:
    """Every code with its name: `BU102` → `shape-mismatch`."""
    heads = (path.read_text("utf-8").partition("\n")[0] for path in sorted(FOLDER.glob("BU*.md")))
    return {code: name for _, code, name in (head.split() for head in heads)}


def page(subject: str) -> str | None:
    """The page of a code, or of its name; None when there is none."""
    wanted = subject.lower()
    for code, name in titles().items():
        if wanted in (code.lower(), name):
            return (FOLDER / f"{code}.md").read_text("utf-8")
    return None
