"""What each format looks like, kept as files. `UPDATE_SNAPSHOTS=1 pytest tests/render` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bringup import __version__
from bringup.codes import titles
from bringup.render.formats.by_name import FORMATS, render
from bringup.render.terminal import Paint
from tests.render.reports import REPORTS

SNAPSHOTS = Path(__file__).with_name("snapshots")
SUFFIXES = {"json": "json", "sarif": "sarif", "junit": "xml", "markdown": "md"}


def steady(text: str, workspace: Path) -> str:
    """Without what differs from run to run and from machine to machine, and without the pages of codes."""
    text = text.replace(workspace.as_uri(), "file:///workspace").replace(str(workspace), "/workspace")
    text = re.sub(r'timestamp="[^"]+"', 'timestamp="2026-01-01T00:00:00"', text)
    for code in titles():
        page = re.compile(rf'("id": "{code}",).*?("help": {{).*?(\n +}}\n +}})', re.DOTALL)
        text = page.sub(r"\1 … \2 … \3", text)
    return text.replace(f'"{__version__}"', '"VERSION"')


def compare(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{path.name} is another; UPDATE_SNAPSHOTS=1 accepts it"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("report", REPORTS)
def test_a_report(workspace: Path, report: str, format: str) -> None:
    text = render(format, REPORTS[report]())
    compare(SNAPSHOTS / f"{report}.{format}.{SUFFIXES.get(format, 'txt')}", steady(text, workspace))


@pytest.mark.parametrize("format", ["full", "concise"])
def test_colour(workspace: Path, format: str) -> None:
    text = render(format, REPORTS["many"](), Paint(True))
    compare(SNAPSHOTS / f"colour.{format}.ansi", steady(text, workspace))
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == render(format, REPORTS["many"]())


def test_every_snapshot_belongs_to_a_test() -> None:
    names = {f"{report}.{format}" for report in REPORTS for format in FORMATS} | {"colour.full", "colour.concise"}
    assert {path.name.rpartition(".")[0] for path in SNAPSHOTS.iterdir()} == names
