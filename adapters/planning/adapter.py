"""An adapter: a table of rules, looked up from the target, and the tensors it drops with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.pattern import closed, compile_pattern, fill, match, spelled
from bringup.adapters.algebra.tensor_names import Names
from bringup.graphs.core.axes import Axes, parse
from bringup.grouping import digits
from bringup.spec import Site, TensorInfo


@dataclass(frozen=True, slots=True)
class Tied:
    """A parameter that may be read from another tensor; see `tied` and `either`. `alike`: both have the same values."""

    own: Expr
    other: Expr
    when: bool
    alike: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Parameters whose name matches `pattern` are computed by `expr`."""

    pattern: str
    expr: Expr | Tied
    site: Site

    @property
    def own_expr(self) -> Expr:
        """The expression; of a tie, that of its own tensor."""
        return self.expr.own if isinstance(self.expr, Tied) else self.expr

    @property
    def own(self) -> tuple[Expr, ...]:
        """The expressions where the parameter is not tied: of alternatives, both."""
        both = isinstance(self.expr, Tied) and not self.expr.alike
        return (self.expr.own, self.expr.other) if isinstance(self.expr, Tied) and both else (self.own_expr,)


@dataclass(frozen=True, slots=True)
class Drop:
    """Checkpoint tensors that no parameter reads.

    `expect` (least, most) bounds how many there are for each number and alternative in the pattern.
    """

    pattern: str
    why: str
    expect: tuple[int, int]
    when: Callable[[Mapping[str, str]], bool] | None
    requires: str
    site: Site

    def means(self, name: str, names: Container[str]) -> dict[str, str] | None:
        """The pattern's variables if the drop applies to a tensor, else None. `names`: the checkpoint's tensors."""
        found = match(self.pattern, name)
        if found is None or (self.when and not self.when(found)):
            return None
        return None if self.requires and fill(self.requires, found) not in names else found


@dataclass(slots=True)
class Adapter:
    """How one family's checkpoints become its graph's parameters.

    `defaults` say how matrices without axes of their own are stored, one string for each kind of parameter, such as
    `"out in"` (torch's Linear) and `"vocab m"`. `prefix` is a first name that a checkpoint may carry or lack;
    `wrappers` are others that may take its place. `infix` is a name that may occur inside of others.
    """

    name: str
    defaults: tuple[str, ...] = ()
    prefix: str = ""
    wrappers: tuple[str, ...] = ()
    rules: list[Rule] = field(default_factory=list[Rule])
    drops: list[Drop] = field(default_factory=list[Drop])
    infix: str = ""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What rules leave out of names: of those that begin a name the first."""
        return tuple(filter(None, (*self.wrappers, self.prefix)))

    def __setitem__(self, pattern: str, expr: Expr | Tied) -> None:
        self.rules.append(Rule(pattern, expr, Site.outside(__file__)))

    def drop(
        self,
        pattern: str,
        *,
        why: str,
        expect: tuple[int, int] | None = None,
        when: Callable[[Mapping[str, str]], bool] | None = None,
        requires: str = "",
    ) -> None:
        """Leaves out the tensors of a pattern.

        `expect` (least, most) bounds how many there are for each number {L} and each alternative {b:x|y}: by default
        one at most, and any number where the pattern has a variable that stands for anything. `when` looks at the
        pattern's variables and says whether it applies. `requires` names a tensor, with the same variables, that
        the checkpoint has to have as well.
        """
        open_ended = any(name not in closed(pattern) for name in compile_pattern(pattern).groupindex)
        bounds = expect or (0, sys.maxsize if open_ended or "**" in pattern else 1)
        self.drops.append(Drop(pattern, why, bounds, when, requires, Site.outside(__file__)))

    def matching(self, name: str) -> Iterator[tuple[Rule, dict[str, str]]]:
        """Every rule that claims a parameter, with its pattern's variables."""
        for rule in self.rules:
            bindings = match(rule.pattern, name)
            if bindings is not None:
                yield rule, bindings

    def leaves_out(self, name: str, names: Names) -> bool:
        """Whether a tensor, by the name that drops use, is one that some drop means."""
        return any(drop.means(name, names) is not None for drop in self.drops)

    def idle(self, names: Iterable[str]) -> dict[str, Rule]:
        """What the patterns spell that is none of these parameters, with the rule."""
        claimed = {digits(name)[0] for name in names}
        spelt = {name: rule for rule in self.rules for name in spelled(rule.pattern)}
        return {name: rule for name, rule in spelt.items() if name not in claimed}

    def names(self, headers: Mapping[str, TensorInfo]) -> Names:
        """A checkpoint's tensors by the names that rules use; one without the infix wins over one that has it."""
        if self.infix:
            short = {name: name.replace(f".{self.infix}.", ".") for name in headers}
            headers = {name if short[name] in headers else short[name]: info for name, info in headers.items()}
        return Names(headers, self.prefixes, self.outside())

    def outside(self) -> set[str]:
        """First names of tensors that are never below the prefix: those that only parameters which are not read."""
        first: dict[bool, set[str]] = {True: set(), False: set()}
        for rule in self.rules:
            below = rule.pattern.startswith(self.prefix)
            first[below] |= {expr.name.partition(".")[0] for expr in rule.own if isinstance(expr, Source)}
        return first[False] - first[True]

    def default_axes(self, declared: Axes) -> Axes:
        """How a source without axes is taken to be stored, with the sizes of the declaration; () where nothing says."""
        if len(declared) == 1:
            return declared
        sizes = {node.name: node.size for axis in declared for node in axis.walk()}
        for text in self.defaults:
            axes = parse(text)
            if len(axes) == len(declared) and all(axis.name in sizes for axis in axes):
                return tuple(axis.sized(sizes) for axis in axes)
        return ()


def tied(own: Expr, other: Expr, *, when: bool) -> Tied:
    """`own` where the checkpoint has it; else, when the config says the two are tied, `other`.

    An untied parameter that is absent is an error. One that is tied and present is used, and compared with `other`.
    """
    return Tied(own, other, when, alike=True)


def either(own: Expr, other: Expr) -> Tied:
    """`own` where the checkpoint has it; else `other`, which serves another model as well and may have other values."""
    return Tied(own, other, when=True, alike=False)
