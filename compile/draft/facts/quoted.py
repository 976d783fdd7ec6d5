"""Text of a checkpoint in generated Python: every name, key and value enters a draft through these functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast


def quoted(value: object) -> str:
    """The Python literal of a JSON value, on one line, with the quotes that formatters prefer.

    A literal contains no call and no name; characters that `repr` escapes (quotes, controls, surrogates) remain
    escaped. A number that is not finite is a text, since Python has no literal of it. Raises TypeError for values that
    JSON does not have.
    """
    if isinstance(value, str):
        return repr(value) if '"' in value else '"' + repr("'" + value)[2:]  # a "'" inside: repr takes double quotes
    if isinstance(value, float) and value - value != 0:
        return quoted(str(value))
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "{" + ", ".join(f"{quoted(key)}: {quoted(item)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(quoted, cast("list[Any]", value))) + "]"
    if isinstance(value, tuple):
        return tuple_of(cast("tuple[Any, ...]", value))
    raise TypeError(f"no JSON value: {type(value).__name__}")


def tuple_of(values: Iterable[object]) -> str:
    """The literal of a tuple; one of a single value ends in a comma."""
    texts = [quoted(value) for value in values]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def one_line(text: str) -> str:
    """A text for a comment: characters that are not printable, such as line ends, are escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )
