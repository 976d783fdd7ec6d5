"""The types of keys that no family reads, but other code does: a wrong type would count as an absent key.

And the value that one of the wrong type clearly stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, cast

from bringup.diagnostics import Diagnostic
from bringup.shown import shown

T = TypeVar("T", int, float, str, bool)
MOST = 1 << 63  # any integer: the range of 64 bits


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_token(value: object) -> bool:
    return type(value) is int


def _is_tokens(value: object) -> bool:
    return _is_token(value) or (isinstance(value, list) and all(map(_is_token, cast("list[object]", value))))


# The types of transformers' `PreTrainedConfig`; null is the same as an absent key.
TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "model_type": ("a string", _is_text),
    "dtype": ("a string", _is_text),
    "torch_dtype": ("a string", _is_text),
    "quantization_config": ("an object", _is_object),
    "compression_config": ("an object", _is_object),
    "bos_token_id": ("an integer", _is_token),
    "pad_token_id": ("an integer", _is_token),
    "eos_token_id": ("an integer or a list of integers", _is_tokens),
}


def mistyped(raw: Mapping[str, Any], excused: Collection[str]) -> Iterator[Diagnostic]:
    """BU121 for each of these keys with a value of another type, except for `excused` keys."""
    for key, (kind, fits) in TYPES.items():
        value = raw.get(key)
        if value is not None and key not in excused and not fits(value):
            message = f"config key `{key}` is {shown(value)}; it must be {kind}, or absent"
            help = "correct the config.json, or remove the key if the model does not need it"
            yield Diagnostic(code="BU121", message=message, parameter=key, help=help)


def converted(value: object, kind: type[T]) -> T | None:
    """The value that one of the wrong JSON type clearly stands for: `"1e-6"`, `"32"`, `32.0`, `"true"`; else None."""
    if isinstance(value, str):
        try:
            value = cast(object, json.loads(value.strip().lower()))
        except (ValueError, RecursionError):
            return None
    if kind is bool:
        return kind(value) if value in (0, 1) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST < value < MOST:
        return None
    return kind(value) if kind is float or (kind is int and value == int(value)) else None
