"""Integers with the config keys that they were computed from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast


class Tracked(int):
    """An int with the `keys` of config.json that it depends on, nested keys dotted; arithmetic of ints joins them."""

    keys: tuple[str, ...]

    @classmethod
    def of(cls, value: int, keys: tuple[str, ...]) -> Tracked:
        tracked = cls(value)
        tracked.keys = tuple(dict.fromkeys(keys))
        return tracked


def _joined(compute: Callable[[Any, Any], Any], *, reflected: bool) -> Any:
    def method(self: Tracked, other: object) -> Any:
        if not isinstance(other, int):  # such as a list, which multiplication repeats
            return NotImplemented
        one, two = (other, self) if reflected else (self, other)
        keys = (key for number in (one, two) if isinstance(number, Tracked) for key in number.keys)
        return Tracked.of(compute(int(one), int(two)), tuple(keys))

    return method


for _name in ("add", "sub", "mul", "floordiv"):
    setattr(Tracked, f"__{_name}__", _joined(getattr(operator, _name), reflected=False))
    setattr(Tracked, f"__r{_name}__", _joined(getattr(operator, _name), reflected=True))


def tracked(words: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The keys and values of a config.json, with its integers tracked, except those in lists."""
    return {key: _tracked(value, at + key) for key, value in words.items()}


def _tracked(value: object, key: str) -> Any:
    if isinstance(value, dict):
        return tracked(cast("dict[str, Any]", value), f"{key}.")
    return Tracked.of(value, (key,)) if isinstance(value, int) and not isinstance(value, bool) else value
