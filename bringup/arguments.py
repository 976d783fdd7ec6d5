"""Checks of the arguments of public functions and the values of options, with the same error messages for both."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from bringup.diagnostics import BringupError, did_you_mean, fail
from bringup.shown import shown

FLOAT_DTYPES = ("auto", "float32", "bfloat16", "float16")  # the dtype that a model computes in
# Other programs' names for them. They are rejected: manifests, `--dtype` and errors have one name for each.
ALSO_CALLED = {
    "fp32": "float32", "f32": "float32", "float": "float32", "single": "float32", "full": "float32",
    "fp16": "float16", "f16": "float16", "half": "float16",
    "bf16": "bfloat16", "bfloat": "bfloat16", "brain": "bfloat16",
}  # fmt: skip


def choice(name: str, value: object, known: Sequence[str]) -> str:
    """One of `known`. Raises BU024 for another value, with a suggestion."""
    if isinstance(value, str) and value in known:
        return value
    word = str(value).removeprefix("torch.")
    other = ALSO_CALLED.get(word.lower(), word)
    hint = f"did you mean `{other}`?" if other in known else did_you_mean(word, known)
    raise _refused(name, value, f"{hint} valid values: {', '.join(known)}".lstrip())


def integer(name: str, value: object, *, minimum: int | None = None) -> int:
    """An integer, also numpy's; at least `minimum`. Raises BU024."""
    try:
        number = operator.index(cast(Any, value))
    except TypeError:
        number = None
    if number is None or (minimum is not None and number < minimum):
        raise _refused(name, value, "use an integer" + ("" if minimum is None else f" of at least {minimum}"))
    return number


def integer_list(name: str, values: object) -> list[int]:
    """The integers of an iterable. Raises BU024."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise _refused(name, values, "pass a list of integers")
    return [integer(name, value) for value in cast("Any", values)]


def path(name: str, value: object) -> str:
    """A text, or a path as a text. Raises BU024."""
    if isinstance(value, str | os.PathLike):
        return os.fsdecode(cast("str | os.PathLike[str]", value))
    raise _refused(name, value, "pass a string or a path")


def mapping(name: str, value: object, keys: type = str, values: type = object) -> Mapping[Any, Any]:
    """A mapping with keys and values of these types. Raises BU024."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        if all(isinstance(key, keys) and isinstance(item, values) for key, item in items.items()):
            return cast("Mapping[Any, Any]", value)
    raise _refused(
        name, cast("object", value), "pass a dict with strings as keys" + (" and values" if values is str else "")
    )


def invalid_value(place: str, value: object, help: str) -> BringupError:
    """BU024 for a value; `place` describes the argument or option that it was passed for."""
    text = f"`{value}`" if isinstance(value, str) and len(value) <= 80 else shown(value)
    return fail("BU024", f"invalid value {text} for {place}", help=help)


def _refused(name: str, value: object, help: str) -> BringupError:
    return invalid_value(f"`{name}`", value, help)
