"""Names of modules in adapter_config.json, prepared so that each name of a base is compared with few of them.

A file may have an entry for each module of a model (rank_pattern after AdaLoRA), so the work must not be the product of
entries and modules. Entries that are names are found by lookup; other expressions are matched one after another, and
their number is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bringup.adapters.lora.expressions import fullmatch

MOST_FORMS = 200  # of one key: expressions, and forms of names, each of which is compared with every module
_PLAIN = re.compile(r"\^?((?:[\w.-]|\\\.)*)\$?")
Number = TypeVar("Number", int, float)
_Form = tuple[bool, tuple[int, ...]]  # whether it begins with ^; the positions of dots, which match any character


def is_last(sections: Iterable[str], name: str) -> bool:
    """Whether a name, or its end after a dot, is one of a set of names."""
    return any(end in sections for end in _ends(name))


def _ends(name: str) -> Iterator[str]:
    """A name, and all its ends after a dot."""
    yield name
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Values by expressions, of which the first that matches a name or its end after a dot counts (peft's
    `get_pattern_key`).

    `names` are expressions that match texts of one length: by length, form and text, each with its position in the
    file. `others` are all others, in order.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Mapping[int, Mapping[_Form, Mapping[str, tuple[int, str]]]] = field(
        default_factory=dict[int, Mapping[_Form, Mapping[str, tuple[int, str]]]]
    )
    others: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> NamePatterns:
        """Does not check whether `others` can be matched."""
        names: dict[int, dict[_Form, dict[str, tuple[int, str]]]] = {}
        others: list[tuple[int, str]] = []
        for order, key in enumerate(values):
            plain = _PLAIN.fullmatch(key)
            if plain is None:
                others.append((order, key))
                continue
            text = plain[1].replace("\\.", "\0")
            dots = tuple(at for at, character in enumerate(text) if character == ".")
            forms = names.setdefault(len(text), {})
            forms.setdefault((key.startswith("^"), dots), {}).setdefault(text.replace("\0", "."), (order, key))
        return cls(values, names, tuple(others))

    @property
    def forms(self) -> int:
        """The number of comparisons for each end of a name."""
        return len(self.others) + sum(map(len, self.names.values()))

    def value(self, name: str, default: Number) -> Number:
        """The value of the first expression that matches; otherwise that of the name itself, or the default."""
        order, key = min(self._named(name), default=(len(self.values), name))
        for at, expression in self.others:
            if at > order:
                break
            if fullmatch(rf"(.*\.)?({expression})$", name):
                key = expression
                break
        return self.values.get(key, default)

    def _named(self, name: str) -> Iterator[tuple[int, str]]:
        """The entries that match by lookup, with their positions in the file."""
        for end in _ends(name):
            for (whole, dots), texts in self.names.get(len(end), {}).items():
                if whole and len(end) != len(name):
                    continue
                characters = list(end)
                for at in dots:
                    characters[at] = "."
                if found := texts.get("".join(characters)):
                    yield found
