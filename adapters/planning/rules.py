"""The parts of an adapter: rules, which compute parameters, and drops of tensors that no parameter reads."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.name_translation import Words, each_source
from bringup.adapters.algebra.pattern import fill, match
from bringup.spec import Site


@dataclass(frozen=True, slots=True)
class Tied:
    """A parameter that may be read from other tensors, of which the first that is there is used; see `tied`, `either`.

    `alike`: all have the same values. `help`: what to do if none is there. Of these, the one with most of its tensors
    is reported; of equals, the last.
    """

    own: Expr
    others: tuple[Expr, ...]
    when: bool
    alike: bool
    help: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Parameters whose name matches `pattern` are computed by `expr`."""

    pattern: str
    expr: Expr | Tied
    site: Site
    level: int = 0  # of the rules that claim one parameter, those of the highest level apply

    @property
    def own_expr(self) -> Expr:
        """The expression; of a tie, that of its own tensor."""
        return self.expr.own if isinstance(self.expr, Tied) else self.expr

    @property
    def every(self) -> tuple[Expr, ...]:
        """The expressions that it may use."""
        return (self.expr.own, *self.expr.others) if isinstance(self.expr, Tied) else (self.expr,)

    @property
    def own(self) -> tuple[Expr, ...]:
        """The expressions if the parameter is not tied: of alternatives, all."""
        return (self.own_expr,) if isinstance(self.expr, Tied) and self.expr.alike else self.every


@dataclass(frozen=True, slots=True)
class Drop:
    """Checkpoint tensors that no parameter reads.

    `expect` (minimum, maximum) limits the count for each number and alternative of the pattern. `wrong` returns, for a
    tensor's name and values, the reason why it must not be dropped; if `reads` names another tensor, it also receives
    the values of that one. `same_as` names a tensor with the same values.
    """

    pattern: str
    why: str
    expect: tuple[int, int]
    when: Callable[[Mapping[str, str]], bool] | None
    requires: str
    site: Site
    wrong: Callable[..., str] | None = None
    same_as: str = ""
    reads: str = ""

    def under(self, words: Words) -> list[Drop]:
        """The drops of the same tensors under translated names."""
        patterns, needed = words.of(self.pattern), words.of(self.requires)
        needed = needed if len(needed) == len(patterns) else needed[:1] * len(patterns)
        (reads, *_) = words.of(self.reads)
        return [replace(self, pattern=p, requires=r, reads=reads) for p, r in zip(patterns, needed, strict=True)]

    def means(self, name: str, names: Container[str]) -> dict[str, str] | None:
        """The pattern's variables if the drop applies to a tensor, else None. `names`: the checkpoint's tensors."""
        found = match(self.pattern, name)
        if found is None or (self.when and not self.when(found)):
            return None
        return None if self.requires and fill(self.requires, found) not in names else found


def changed(rule: Rule, change: Callable[[Source], Source]) -> Rule:
    """A rule with every source changed."""

    def read(expr: Expr) -> Expr:
        return each_source(expr, change)

    expr = rule.expr
    if isinstance(expr, Tied):
        return replace(rule, expr=replace(expr, own=read(expr.own), others=tuple(map(read, expr.others))))
    return replace(rule, expr=read(expr))


def sources_of(rule: Rule) -> list[Source]:
    """Every source that a rule reads, by its name in the rule; without the sources of functions before the rules."""
    found: list[Source] = []

    def note(source: Source) -> Source:
        found.append(source)
        return source

    changed(rule, note)
    return found
