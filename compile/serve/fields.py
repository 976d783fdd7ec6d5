"""The fields of a request's body. Each is read once, with its type; unread fields are errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from bringup.compile.serve.error_response import Refused, wrong
from bringup.diagnostics import did_you_mean
from bringup.shown import short, shown

LARGEST = (1 << 63) - 1


class Fields:
    """A JSON object. null counts as absent. Each method raises Refused, 400, and names the field."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        self._names = list(given)
        self._known: list[str] = []

    @property
    def given(self) -> Mapping[str, Any]:
        """All fields that are not null."""
        return self._given

    def get(self, name: str) -> Any:
        """The value of a field; None if it is absent."""
        self._known.append(name)
        return self._given.get(name)

    def integer(self, name: str, default: int, *, minimum: int, maximum: int = LARGEST) -> int:
        """An integer from `minimum` to `maximum`; `default` if it is absent."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) is not int or not minimum <= value <= maximum:
            is_larger = type(value) is int and value > maximum
            upper = f" to {maximum:,}" if maximum < LARGEST or is_larger else ""
            raise wrong(name, f"`{name}` is {shown(value)}, not an integer from {minimum:,}{upper}")
        return value

    def number(
        self, name: str, default: float, *, maximum: float, minimum: float = 0.0, above: float = -math.inf
    ) -> float:
        """A number from `minimum` to `maximum`, and above `above`; `default` if it is absent."""
        value = self.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not minimum <= value <= maximum or value <= above:
            lower = "above 0" if above == 0 else f"from {minimum:g}"
            raise wrong(name, f"`{name}` is {shown(value)}, not a number {lower} to {maximum:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """A boolean; false if it is absent."""
        value = self.get(name)
        if value is not None and type(value) is not bool:
            raise wrong(name, f"`{name}` is {shown(value)}, not true or false")
        return bool(value)

    def text(self, name: str) -> str:
        """A required text; not an empty one."""
        value = self.get(name)
        if type(value) is not str or not value:
            found = "missing" if value is None else f"{shown(value)}, not a nonempty string"
            raise wrong(name, f"`{name}` is {found}")
        return value

    def object(self, name: str) -> Fields | None:
        """A nested object; None if it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if type(value) is not dict:
            raise wrong(name, f"`{name}` is {shown(value)}, not an object")
        return Fields(cast("dict[str, Any]", value))

    def unsupported(self, name: str, *neutral: object) -> None:
        """Rejects a field that is not implemented, except for `neutral` values, which have no effect."""
        value = self.get(name)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise Refused(400, f"`{name}` is not supported", param=name, code="unsupported_parameter")

    def ignore(self, names: Sequence[str]) -> None:
        """Accepts fields that have no effect on an answer."""
        self._known += names

    def finish(self, within: str = "") -> None:
        """Rejects unread fields; `within` is the prefix of their names in the message."""
        unknown = [name for name in self._names if name not in self._known]
        if unknown:
            name = f"{within}{short(unknown[0])}"
            message = f"unknown field `{name}`; {did_you_mean(unknown[0], self._known)}".removesuffix("; ")
            raise Refused(400, message, param=name, code="unknown_parameter")
