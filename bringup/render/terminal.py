"""What reads our streams: a terminal with colour, somebody who watches, a file, GitHub Actions."""

from __future__ import annotations

import os
from typing import TextIO

_STYLES = {"bold": "1", "red": "1;31", "green": "1;32", "yellow": "1;33", "blue": "1;34", "cyan": "1;36"}


def is_live(stream: TextIO) -> bool:
    """Whether somebody watches: lines may be written over."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_color(stream: TextIO) -> bool:
    """https://no-color.org: NO_COLOR wins; FORCE_COLOR asks for colour in files and pipes too."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_live(stream)


def on_github() -> bool:
    """Whether a step of GitHub Actions runs us, and reads what we write."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class Paint:
    """Colours text, or leaves it alone."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        return cls(wants_color(stream))

    def __call__(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.on and text else text
