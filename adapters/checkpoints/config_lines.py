"""The lines of a config.json that state its keys."""

from __future__ import annotations

import re
from pathlib import Path

MOST = 1 << 20  # bytes that are searched; the largest published config has 100 kB
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


def line_of(file: Path, key: str) -> int:
    """The line, from 1, on which a file states the key with this dotted path; 0 if it does not."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST + 1).decode()
    except (OSError, UnicodeDecodeError):
        return 0
    if len(text) > MOST:
        return 0
    outer: list[str] = []  # the keys of the objects and lists around a token, the outermost "" first
    at, string, last = 0, "", ""
    for token in TOKEN.finditer(text):
        word = token[0]
        if word[0] == '"':
            at, string = token.start(), word[1:-1]
        elif word == ":":
            last = string
            if ".".join([*outer[1:], last]) == key:
                return 1 + text.count("\n", 0, at)
        elif word in "{[":
            outer.append(last)
        elif outer:
            last = outer.pop()
    return 0
