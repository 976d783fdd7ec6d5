"""Colour, stage lines and numbers."""

from __future__ import annotations

import io
import re

import pytest

from bringup.progress import Progress, Silent
from bringup.render.progress import StageLines
from bringup.render.terminal import wants_color
from bringup.render.words import plural, seconds, size, table


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_color(Screen())
    assert not wants_color(io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Screen())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Screen())


def test_a_log_has_only_finished_stages() -> None:
    log = io.StringIO()
    lines = StageLines(log)
    with lines.stage("Checking gpt2") as stage:
        stage.advance(0.5)
        stage.done("149 parameters")
    with lines.stage("Writing gpt2.bundle"):
        pass
    text = re.sub(r"\d\.\d\d s", "T", log.getvalue())
    assert text == "     Checked 149 parameters in T\n       Wrote gpt2.bundle in T\n"


def test_a_screen_shows_what_is_under_way() -> None:
    screen = Screen()
    with StageLines(screen).stage("Lowering gpt2") as stage:
        assert screen.getvalue().endswith("Lowering\x1b[0m gpt2")
        stage.advance(0.5)
        assert screen.getvalue().endswith(f"gpt2 [{'=' * 12}{' ' * 12}]  50%")
    assert "\r\x1b[2K\x1b[1;32m     Lowered\x1b[0m gpt2 in " in screen.getvalue()


def test_a_stage_that_fails_claims_nothing() -> None:
    log, screen = io.StringIO(), Screen()
    for stream in (log, screen):
        with pytest.raises(ZeroDivisionError), StageLines(stream).stage("Checking gpt2"):
            raise ZeroDivisionError
    assert log.getvalue() == ""
    assert screen.getvalue().endswith("gpt2\n")


def test_silent_is_a_progress() -> None:
    progress: Progress = Silent()
    with progress.stage("Checking") as stage:
        stage.advance(1)
        stage.done("all")


def test_numbers() -> None:
    assert [seconds(s) for s in (0.004, 9.994, 12.34, 125)] == ["0.00 s", "9.99 s", "12.3 s", "2 min 5 s"]
    assert [size(n) for n in (0, 999, 1000, 497_759_232)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "497.8 MB",
    ]
    assert [plural(n, "error") for n in (0, 1, 3000)] == ["0 errors", "1 error", "3,000 errors"]


def test_table() -> None:
    assert table([("a", "bb"), ("ccc", "")]) == "a    bb\nccc"
