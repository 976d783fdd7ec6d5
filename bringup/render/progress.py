"""Stages on stderr in the style of cargo and uv: past tense, the result, the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from bringup.diagnostics import Diagnostic
from bringup.progress import RECENT_LINES, Stage
from bringup.render.report import findings_text
from bringup.render.terminal import Paint, is_live, on_github
from bringup.render.words import seconds

VERB = 12  # columns of the right-aligned verb
_BAR = 24
_REDRAW = 0.1  # seconds between two updates of a bar
_IRREGULAR = {
    "Building": "Built",
    "Finding": "Found",
    "Making": "Made",
    "Reading": "Read",
    "Running": "Ran",
    "Writing": "Wrote",
}


class StageLines:
    """A Progress for people. Running stages are printed only to a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.paint = Paint.of(self.stream)
        self.live = is_live(self.stream)

    @contextmanager
    def stage(self, name: str) -> Generator[Stage]:
        """Runs one stage; the line of a stage that fails is not changed."""
        RECENT_LINES.append(name)
        verb, _, rest = name.partition(" ")
        current = _Line(self, verb, rest)
        start = time.perf_counter()
        current.draw("")
        try:
            yield current
        except BaseException:
            self.stream.write("\n" if self.live else "")
            raise
        took = f" in {seconds(time.perf_counter() - start)}"
        text = current.result or rest
        self.say(_past(verb), text + took)

    def warn(self, finding: Diagnostic) -> None:
        """A warning, above the running stage."""
        self.stream.write(self._clear() + findings_text([finding], self.paint))
        if on_github():
            from bringup.render.annotations import workflow_commands

            self.stream.write(workflow_commands([finding]))
        self.stream.flush()

    def say(self, verb: str, text: str) -> None:
        """Prints one finished line."""
        RECENT_LINES.append(f"{verb} {text}")
        self.stream.write(f"{self._clear()}{self.paint(verb.rjust(VERB), 'green')} {text}\n")
        self.stream.flush()

    def draw(self, verb: str, text: str) -> None:
        """Prints a line that the next one replaces."""
        if self.live:
            self.stream.write(f"{self._clear()}{self.paint(verb.rjust(VERB), 'cyan')} {text}")
            self.stream.flush()

    def _clear(self) -> str:
        return "\r\x1b[2K" if self.live else ""


class _Line:
    """The running stage."""

    def __init__(self, lines: StageLines, verb: str, rest: str) -> None:
        self.lines = lines
        self.verb = verb
        self.rest = rest
        self.result = ""
        self.drawn = 0.0

    def done(self, text: str) -> None:
        self.result = text

    def advance(self, fraction: float) -> None:
        now = time.monotonic()
        if now - self.drawn >= _REDRAW:
            self.drawn = now
            filled = round(_BAR * min(max(fraction, 0.0), 1.0))
            self.draw(f" [{'=' * filled}{' ' * (_BAR - filled)}] {fraction:4.0%}")

    def draw(self, bar: str) -> None:
        self.lines.draw(self.verb, self.rest + bar)


def _past(verb: str) -> str:
    return _IRREGULAR.get(verb) or (f"{verb[:-3]}ed" if verb.endswith("ing") else verb)
