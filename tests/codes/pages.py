"""Reads the page of a code as a script: the files that it shows, its commands, and their output.

```python adapter.py          a file to write, with its name after the language
```console
$ bringup check …             a command for bash
error[BU102]: …               a line of its output; `…` stands for anything
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from bringup.codes import FOLDER

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Command:
    """One command, and what its output is said to hold, line by line."""

    line: str
    output: list[str] = field(default_factory=list)


@dataclass
class Page:
    code: str
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)


def read(path: Path) -> Page:
    """The script of one page; one without commands has no example."""
    page = Page(path.stem)
    for language, name, text in _BLOCK.findall(path.read_text("utf-8")):
        if name:
            page.files[name] = text
        elif language == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    page.commands.append(Command(line.removeprefix("$ ")))
                else:
                    page.commands[-1].output.append(line)
    return page


def pages() -> list[Page]:
    return [read(path) for path in sorted(FOLDER.glob("BU*.md"))]


def missing(said: list[str], printed: str) -> list[str]:
    """The lines of a page that a command does not print, in their order."""
    rest = iter(printed.splitlines())
    return [line for line in said if not any(_matches(line, other) for other in rest)]


def _matches(line: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, line.rstrip().split("…")))
    return re.fullmatch(pattern, printed.rstrip()) is not None
