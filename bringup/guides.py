"""The pages of the documentation, which are installed with the package: `bringup explain adding-a-model` prints one."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "docs"


def names() -> list[str]:
    """The names of the pages, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def guide(subject: str) -> str | None:
    """The text of a page, named as `lora`, `lora.md` or `docs/lora.md`; None if there is none."""
    name = subject.removeprefix("docs/").removesuffix(".md")
    return (FOLDER / f"{name}.md").read_text("utf-8") if name in names() else None
