"""The modules that a group of settings applies to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.adapters.schemes.scheme import Modules
from bringup.graphs.config.expression import Expression
from bringup.graphs.config.fields import Fields
from bringup.shown import shown

MOST = 50  # expressions, each of which is compared with every module
_CLASS = re.compile(r"[A-Z]\w*")


@dataclass(frozen=True, slots=True)
class Targets:
    """Names of modules, expressions that begin with `re:`, and names of classes.

    A class with `Embedding` in its name matches every table of rows, any other class every other module.
    """

    NAME: ClassVar[int] = 0
    EXPRESSION: ClassVar[int] = 1
    CLASS: ClassVar[int] = 2
    NONE: ClassVar[int] = 3

    names: frozenset[str] = frozenset()
    expressions: tuple[Expression, ...] = ()
    classes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, words: Fields, key: str) -> Self:
        """From a list in a config. Reports BU121 without one, BU122 for an expression that is not supported."""
        entries = words.strings(key)
        if not entries:
            words.error("BU121", f"config key `{key}` is {shown(entries)}; names of modules are needed", key, stops="")
        expressions = list[Expression]()
        for entry in (entry.removeprefix("re:") for entry in entries or () if entry.startswith("re:")):
            try:
                expressions.append(Expression(entry))
            except ValueError as error:
                words.error("BU122", f"`{key}` has {shown(entry)}, which cannot be parsed: {error}", key)
        if len(expressions) > MOST:
            words.error("BU122", f"`{key}` has more than {MOST} expressions", key)
            return cls()
        plain = {entry for entry in entries or () if not entry.startswith("re:")}
        classes = frozenset(entry for entry in plain if _CLASS.fullmatch(entry))
        return cls(frozenset(plain - classes), tuple(expressions), classes)

    def rank(self, modules: Modules) -> tuple[int, str]:
        """The precedence of the match with a module, which has these names: the least is the closest.

        Of several expressions, or classes, the first in alphabetical order (compressed-tensors' `match_targets`).
        """
        if not self.names.isdisjoint(modules):
            return self.NAME, ""
        matching = [each.text for each in self.expressions if any(map(each.matches, modules))]
        if matching:
            return self.EXPRESSION, min(matching)
        of_kind = [name for name in self.classes if ("Embedding" in name) == modules.table]
        return (self.CLASS, min(of_kind)) if of_kind else (self.NONE, "")
