"""A rule that differs between layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope


@dataclass(frozen=True)
class Where(Expr):
    """`there` for the numbers of a pattern's variable, `elsewhere` for all others; see `where`."""

    variable: str
    numbers: frozenset[str]
    there: Expr
    elsewhere: Expr

    def inputs(self) -> tuple[Expr, ...]:
        return self.there, self.elsewhere

    def select(self, bindings: Mapping[str, str]) -> Expr:
        return self.there if bindings[self.variable] in self.numbers else self.elsewhere

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        return self.select(bindings).leaves(bindings)

    def region(self, scope: Scope) -> Region:
        return self.select(scope.bindings).region(scope)


def where(variable: str, numbers: set[int], there: Expr, elsewhere: Expr) -> Expr:
    """`there` for these numbers of a pattern's variable, `elsewhere` for all others."""
    return Where(variable, frozenset(map(str, numbers)), there, elsewhere)
