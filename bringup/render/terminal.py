"""What the output streams are: a terminal with colour, an interactive one, a file, GitHub Actions."""

from __future__ import annotations

import os
from typing import TextIO

_STYLES = {"bold": "1", "red": "1;31", "green": "1;32", "yellow": "1;33", "blue": "1;34", "cyan": "1;36"}


def is_live(stream: TextIO) -> bool:
    """Whether the stream is an interactive terminal: lines may be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_color(stream: TextIO) -> bool:
    """https://no-color.org: NO_COLOR takes precedence; FORCE_COLOR enables colour in files and pipes too."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_live(stream)


def on_github() -> bool:
    """Whether the process is a step of GitHub Actions, which reads its output."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class Paint:
    """Colours text, or leaves it unchanged."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        return cls(wants_color(stream))

    def __call__(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.on and text else text
