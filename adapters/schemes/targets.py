"""The modules that a group of settings is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.adapters.schemes.scheme import Modules
from bringup.graphs.config.expression import Expression
from bringup.graphs.config.fields import Fields
from bringup.shown import shown

MOST = 50  # expressions, each of which is tried on every module
_CLASS = re.compile(r"[A-Z]\w*")


@dataclass(frozen=True, slots=True)
class Targets:
    """Names of modules, expressions that begin with `re:`, and names of classes.

    A class with `Embedding` in its name stands for every table of rows, any other class for every other module.
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
        """From a list in a config. Notes BU121 where there is none, BU122 for an expression that is not understood."""
        entries = words.words(key)
        if not entries:
            words.error("BU121", f"config key `{key}` is {shown(entries)}; names of modules are needed", key, stops="")
        expressions = list[Expression]()
        for entry in (entry.removeprefix("re:") for entry in entries or () if entry.startswith("re:")):
            try:
                expressions.append(Expression(entry))
            except ValueError as error:
                words.error("BU122", f"`{key}` has {shown(entry)}, which is not understood: {error}", key)
        if len(expressions) > MOST:
            words.error("BU122", f"`{key}` has more than {MOST} expressions", key)
            return cls()
        plain = {entry for entry in entries or () if not entry.startswith("re:")}
        classes = frozenset(entry for entry in plain if _CLASS.fullmatch(entry))
        return cls(frozenset(plain - classes), tuple(expressions), classes)

    def rank(self, modules: Modules) -> int:
        """How closely the targets mean a module, which has these names: the least counts."""
        if not self.names.isdisjoint(modules):
            return self.NAME
        if any(expression.matches(module) for expression in self.expressions for module in modules):
            return self.EXPRESSION
        return self.CLASS if any(("Embedding" in name) == modules.table for name in self.classes) else self.NONE
