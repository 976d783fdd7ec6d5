"""Reads the page of a code as a script: the files that it shows, its commands, and their output.

```python adapter.py          a file to write, with its name after the language
```console
$ bringup check …             a command for bash
error[BU102]: …               a line of its output; `…` stands for anything
```
"""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bringup.codes import FOLDER

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Of a server, in an address, in the arguments of Python's sockets, and as an option.
_PORT = re.compile(r"""(?:127\.0\.0\.1(?::|", )|--port )(\d{4})\b""")


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


def with_free_ports(page: Page) -> Page:
    """The page with a free port in place of each that its example uses: pages, and other programs, run at that time."""
    texts = [*page.files.values(), *(command.line for command in page.commands)]
    written = sorted({port for text in texts for port in _PORT.findall(text)})
    free = {port: str(number) for port, number in zip(written, _free_ports(len(written)), strict=True)}

    def of(text: str) -> str:
        return re.sub(r"\b\d{4}\b", lambda found: free.get(found[0], found[0]), text)

    commands = [Command(of(command.line), [of(line) for line in command.output]) for command in page.commands]
    return Page(page.code, {name: of(text) for name, text in page.files.items()}, commands)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:  # all are open until the last is chosen, so that they differ
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def missing(said: list[str], printed: str) -> list[str]:
    """The lines of a page that a command does not print, in their order."""
    rest = iter(printed.splitlines())
    return [line for line in said if not any(_matches(line, other) for other in rest)]


def _matches(line: str, printed: str) -> bool:
    pattern = ".*".join(map(re.escape, line.rstrip().split("…")))
    return re.fullmatch(pattern, printed.rstrip()) is not None
