"""No character that a stranger chose steers what reads a report."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from bringup.diagnostics import Diagnostic, Report
from bringup.render.formats.by_name import FORMATS, render
from bringup.render.visible import visible
from tests.render.reports import REPORTS

HARMFUL = {"Cc", "Cs", "Zl", "Zp"}  # categories of Unicode: controls, surrogates, line and paragraph separators


def test_every_character_of_unicode() -> None:
    """What stays is neither a control nor unprintable; what is letters, digits and signs stays."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if visible(char) == char:
            assert unicodedata.category(char) not in HARMFUL, hex(code)
            assert unicodedata.bidirectional(char) not in {
                "LRE",
                "RLE",
                "LRO",
                "RLO",
                "PDF",
                "LRI",
                "RLI",
                "FSI",
                "PDI",
            }
        else:
            assert not char.isprintable() or unicodedata.category(char) == "Cf", hex(code)
            assert visible(char).isascii()
            assert visible(char).encode().decode("unicode_escape") == char


def test_text_stays() -> None:
    assert visible("h.{0..11}.w — é 層 🙂 ## [x] #[y]") == "h.{0..11}.w — é 層 🙂 ## [x] #[y]"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("file", ["x" * 10_000, "\0", "../" * 2000 + "x", "\ud800", " "])
def test_a_path_that_no_file_can_have(workspace, file: str, format: str) -> None:
    report = Report("tiny", [Diagnostic(code="BU201", message="m", file=file)])
    assert "BU201" in render(format, report)


@pytest.mark.parametrize("format", FORMATS)
def test_a_hostile_report(workspace, format: str) -> None:
    text = render(format, REPORTS["hostile"]())
    assert all(char == "\n" or unicodedata.category(char) not in {*HARMFUL, "Cf"} for char in text)
    assert "##[" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines() if format != "github")
    text.encode()


@pytest.mark.parametrize("format", FORMATS)
def test_a_name_as_long_as_a_file_is_cut(format: str) -> None:
    """A path of 4,095 characters, the most that Linux has, is not."""
    name, path = "a" * 1_000_000, "b" * 4095
    found = Diagnostic(code="BU105", message=f"no rule reads `{name}` [3]", sources=(name,), parameter=name, help=path)
    text = render(format, Report(model="m", findings=[found]))
    assert len(text) < 30_000
    assert " (1,000,000 characters)" in text
    assert format == "concise" or path in text
