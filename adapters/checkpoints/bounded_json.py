"""JSON from untrusted files: measured before it is parsed, so that no document takes more than a second and 200 MB."""

from __future__ import annotations

import gc
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.files import opened
from bringup.diagnostics import fail

MAX_TEXT = 32 << 20  # bytes; the largest published index, Kimi K2's with 207,000 tensors, has 24 MB
MAX_WIDE = MAX_TEXT // 8  # bytes of a text with non-ASCII characters: one of them makes a string four times as wide
MAX_OBJECTS = 114 << 20  # bytes of the parsed objects in addition to characters: 95,000 tensors of a header
MAX_DEPTH = 64  # nested objects and lists; a config has 3
MAX_DIGITS = 400  # digits of a number; parsing more takes quadratic time

# The most memory that CPython needs for each object, key, list, element and string (two quotes), during and after
# parsing.
WEIGHTS = {b"{": 120, b":": 110, b"[": 72, b",": 48, b'"': 30}
OTHERS = bytes({*range(256)} - {*b"".join(WEIGHTS)})


def read_json(path: Path, *, deep: int = MAX_DEPTH, bulk: bool = False) -> dict[str, Any]:
    """The JSON object in a file. Raises BU233 for a file that cannot be read, ValueError as `strict_json`."""
    with opened(path) as file:
        parsed = strict_json(file.read(MAX_TEXT + 1), bulk=bulk)
    level: list[Any] = [parsed]
    for _ in range(deep):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return parsed
    raise ValueError(f"nested more than {deep} deep")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises BU202, and BU233 for a file that cannot be read."""
    try:
        return read_json(path)
    except ValueError as error:
        raise fail(
            "BU202",
            f"`{path}` is not readable as a config: {error}",
            help="download the file from the model's page again, or give another with --config FILE",
            file=str(path),
        ) from None


def strict_json(text: bytes, *, finite: bool = False, bulk: bool = False) -> dict[str, Any]:
    """A JSON object; see `strict_value`. Raises ValueError for everything else."""
    parsed = strict_value(text, finite=finite, bulk=bulk)
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object, got {type(parsed).__name__}")
    return cast(dict[str, Any], parsed)


def strict_value(text: bytes, *, finite: bool = False, bulk: bool = False) -> Any:
    """A JSON value. `finite` rejects NaN and Infinity, which Python writes and JSON does not define.

    `bulk` is for lists of tensors, whose reader checks every number: it omits a call for each, a third of the time.

    Raises ValueError for everything else: bad UTF-8, bad JSON, repeated keys, lone surrogates, deep nesting, very long
    numbers, and texts that would take too much memory.
    """
    _measure(text)
    wide, collects = b"\\" in text, gc.isenabled()
    gc.disable()  # a document has no cycles, and the search for them takes a third of the time
    try:
        parsed = _parsed(text.decode(), _refuse if finite else None, bulk=bulk)
        if wide:  # only an escape can encode a lone surrogate
            json.dumps(parsed, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    finally:
        if collects:
            gc.enable()
    return parsed


def _parsed(text: str, constant: Callable[[str], None] | None, *, bulk: bool) -> Any:
    if bulk and sys.get_int_max_str_digits():  # otherwise a very long number would take very long
        with suppress(ValueError):  # the code below reports errors in more detail
            parsed = json.loads(text, parse_float=_float, parse_constant=constant)
            if _has_keys(parsed, text.count(":")):  # each has a colon, so none is repeated
                return parsed
    return json.loads(
        text, object_pairs_hook=_unique_keys, parse_int=_integer, parse_float=_float, parse_constant=constant
    )


def _has_keys(parsed: Any, wanted: int) -> bool:
    """Whether the objects of a document have this many keys in total, except those in lists."""
    level: list[dict[str, Any]] = [parsed] if isinstance(parsed, dict) else []
    while level and wanted > 0:
        wanted -= sum(map(len, level))
        level = [value for each in level for value in each.values() if isinstance(value, dict)] if wanted else []
    return wanted == 0


def _measure(text: bytes) -> None:
    if len(text) * max(WEIGHTS.values()) <= MAX_OBJECTS:
        return
    wide = b"\\" in text and b"\\u" in text  # the search for one byte takes a tenth of the time of two
    most = MAX_TEXT if text.isascii() and not wide else MAX_WIDE
    if len(text) > most:
        more = "" if most == MAX_TEXT else " with characters beyond ASCII"
        raise ValueError(f"more than {most >> 20} MiB of text{more}")
    marks = text.translate(None, OTHERS)
    if sum(marks.count(mark) * weight for mark, weight in WEIGHTS.items()) > MAX_OBJECTS:
        raise ValueError(f"its {text.count(b','):,} values would take more than {MAX_OBJECTS >> 20} MiB of memory")


def _members(value: Any) -> list[Any]:
    """The objects and lists directly in an object or list."""
    items: Any = cast("dict[str, Any]", value).values() if isinstance(value, dict) else value
    if {dict, list}.isdisjoint(map(type, items)):
        return []
    return [item for item in items if isinstance(item, dict | list)]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key `{twice}` occurs twice in one object")
    return unique


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
