"""An adapter: a table of rules by target parameter, and the tensors that it drops with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.hooks import Hook
from bringup.adapters.algebra.name_translation import (
    NO_WORDS,
    Changeable,
    Reading,
    Table,
    Words,
    first_section,
    renamed_source,
    translated,
)
from bringup.adapters.algebra.pattern import closed, compile_pattern, fill, match, spelled
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.rules import Drop, Rule, Tied, changed
from bringup.graphs.core.axes import Axes, AxesError, parse, sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.grouping import digits
from bringup.spec import Site, TensorInfo

NO_RULES: Mapping[str, Any] = {}
NO_DROPS: Mapping[str, str] = {}


@dataclass(frozen=True)
class OfParameter(Changeable):
    """The result of an adapter's rules for a parameter, in these axes; for a tie, its own tensor."""

    adapter: Adapter
    name: str
    axes: str
    own_sizes: Mapping[str, int]

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        for rule, inner in self.adapter.matching(fill(self.name, bindings)):
            yield from rule.own_expr.leaves(inner)

    def changed(self, change: Callable[[Source], Source]) -> OfParameter:
        rules = [changed(rule, change) for rule in self.adapter.rules]
        return replace(self, adapter=replace(self.adapter, rules=rules, _renamed_rules={}))

    def region(self, scope: Scope) -> Region:
        name, sizes = fill(self.name, scope.bindings), {**scope.sizes, **self.own_sizes}
        claims = list(self.adapter.matching(name))
        if len(claims) != 1:
            raise AxesError(f"{len(claims)} rules of the base claim `{name}`")
        rule, bindings = claims[0]
        wanted = sized(self.axes, sizes)
        defaults = self.adapter.default_axes(wanted) if isinstance(rule.own_expr, Source) else ()
        inner = replace(scope, bindings=bindings, sizes=sizes, defaults=defaults)
        return rule.own_expr.region(inner).to(wanted)


@dataclass(slots=True)
class Adapter:
    """How one family's checkpoints become its graph's parameters.

    `defaults` state how matrices without declared axes are stored, one string for each kind of parameter, such as `"out
    in"` (torch's Linear) and `"vocab m"`. `prefix` is a first name that a checkpoint may have or lack; `wrappers` are
    alternatives to it; names that begin with one of `unprefixed` have neither. `infix` is a name that may occur inside
    of others. `trace` is that of `traced`, whose rules follow from headers. `before` and `after` are the functions of
    `with_`, which rules refer to. `by_name`: the tensors are the parameters, each under its own name, so findings do
    not mention rules.
    """

    name: str
    defaults: tuple[str, ...] = ()
    prefix: str = ""
    wrappers: tuple[str, ...] = ()
    unprefixed: tuple[str, ...] = ()
    rules: list[Rule] = field(default_factory=list[Rule])
    drops: list[Drop] = field(default_factory=list[Drop])
    infix: str = ""
    trace: Callable[[Adapter, Signature, Mapping[str, TensorInfo]], Adapter] | None = None
    before: tuple[Hook, ...] = ()
    after: tuple[Hook, ...] = ()
    by_name: bool = False
    _renamed_rules: dict[object, Rule] = field(default_factory=dict[object, Rule], repr=False, compare=False)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes that rules omit: the first one that a name begins with."""
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
        wrong: Callable[..., str] | None = None,
        same_as: str = "",
        reads: str = "",
    ) -> None:
        """Drops the tensors of a pattern.

        `expect` (minimum, maximum) bounds the number of tensors for each number {L} and alternative {b:x|y}: by default
        at most one, and any number if the pattern has a variable that matches anything. `when(variables)` decides
        whether the drop applies. `requires` names a tensor, with the same variables, that the checkpoint must also
        have. `wrong(name, values)` is called once the values are read; it returns the reason why they must not be
        dropped (BU115), or "". `reads` names a tensor whose values are a third argument; without it in the checkpoint,
        `wrong` is not called. `same_as` names a tensor of the checkpoint that must have the same values (BU115).
        """
        open_ended = any(name not in closed(pattern) for name in compile_pattern(pattern).groupindex)
        bounds = expect or (0, sys.maxsize if open_ended or "**" in pattern else 1)
        self.drops.append(Drop(pattern, why, bounds, when, requires, Site.outside(__file__), wrong, same_as, reads))

    def with_(
        self,
        name: str = "",
        *,
        names: Table = NO_WORDS,
        rules: Mapping[str, Expr | Tied] = NO_RULES,
        drops: Mapping[str, str] = NO_DROPS,
        before: Iterable[Hook] = (),
        after: Iterable[Hook] = (),
    ) -> Adapter:
        """An adapter that is defined by its differences from this one.

        `names` maps one or several sections of a name in these rules, or the prefix, to the checkpoint's names:
        `{"self_attn": "attention"}`. "" removes the section, and a tuple reads several tensors, concatenated along
        `out` or else the first axis. `rules` replace those for the same parameters; they, and `drops` (pattern → why),
        are in the checkpoint's own names. `before` computes tensors that these rules read, from the checkpoint's;
        `after` computes parameters from the results of these rules.

        Raises ValueError for two functions with the same result, TypeError for a name that is no text, and for `names`
        and `before` of a traced function, which reads the checkpoint's names itself.
        """
        if not isinstance(cast("object", name), str):
            raise TypeError("the first argument of `with_` is the adapter's name: pass `rules={…}` or `names={…}`")
        before, after, site = tuple(before), tuple(after), Site.outside(__file__)
        for hooks in (before, after):
            given = [pattern for hook in hooks for pattern in hook.outputs]
            twice = [pattern for pattern in dict.fromkeys(given) if given.count(pattern) > 1]
            if twice:
                raise ValueError(f"two hooks have the result `{twice[0]}`: each name must have one function")
        if not self.trace:
            return self._derived(site, name, names, rules, drops, before, after)
        if names or before:
            message = "`names` and `before` change what rules read, and a traced function reads tensors by itself"
            help = "state them in the function; `rules`, `drops` and `after` apply to its results"
            raise TypeError(f"{message}: {help}")

        def trace(own: Adapter, signature: Signature, headers: Mapping[str, TensorInfo]) -> Adapter:
            found = self.on(signature, headers)._derived(site, name, NO_WORDS, rules, drops, (), after)
            return replace(found, rules=[*found.rules, *own.rules], drops=[*found.drops, *own.drops])

        return replace(self, name=name or self.name, rules=[], drops=[], trace=trace, _renamed_rules={})

    def _derived(
        self,
        site: Site,
        name: str,
        names: Table,
        rules: Mapping[str, Expr | Tied],
        drops: Mapping[str, str],
        before: tuple[Hook, ...],
        after: tuple[Hook, ...],
    ) -> Adapter:
        """As `with_`, of an adapter whose rules are known. `site`: where the differences are stated."""
        words = Words(names)
        functions = tuple(
            replace(
                hook,
                parts=tuple(Source(n, a, hook.sizes) for n, a in hook.inputs.items()),
                read=set[str](),
                site=site,
            )
            for hook in before
        )
        readings = (Reading(words, functions),)
        level = 1 + max((rule.level for rule in self.rules), default=0)
        base = replace(
            self,
            name=name or self.name,
            rules=[changed(rule, partial(translated, readings=readings)) for rule in self.rules],
            before=(*self.before, *functions),
            _renamed_rules={},
        )
        base.drops = [drop for given in self.drops for drop in given.under(words)]
        prefix = self.prefix.removesuffix(".")
        if prefix in names:
            base.prefix = "".join(f"{found}." for found in words.of(prefix) if found)
        derived = replace(base, rules=list(base.rules), drops=list(base.drops), _renamed_rules={})
        own = (Rule(pattern, expr, site, level) for pattern, expr in rules.items())
        derived.rules += [changed(rule, lambda source: replace(source, literal=True)) for rule in own]
        derived.after += tuple(replace(hook, read=set[str](), site=site) for hook in after)
        for hook in after:
            taken = (OfParameter(base, n, a, hook.sizes) for n, a in hook.inputs.items())
            whole = replace(hook, parts=tuple(taken))
            derived.rules += [Rule(pattern, whole.output(pattern), site, level) for pattern in hook.outputs]
        for pattern, why in drops.items():
            derived.drop(pattern, why=why)
            derived.drops[-1] = replace(derived.drops[-1], site=site)
        return derived

    def unused(self, names: Iterable[str]) -> Iterator[Hook]:
        """Functions whose results no rule of these parameters reads, after planning."""
        yield from (hook for hook in self.before if not hook.read)
        named = list(names)
        for hook in self.after:
            if not any(match(pattern, name) is not None for name in named for pattern in hook.outputs):
                yield hook

    def matching(self, name: str) -> Iterator[tuple[Rule, dict[str, str]]]:
        """Every rule for a parameter, with its pattern's variables; rules of `with_` replace the others."""
        found = [(rule, bindings) for rule in self.rules if (bindings := match(rule.pattern, name)) is not None]
        highest = max((rule.level for rule, _ in found), default=0)
        yield from (claim for claim in found if claim[0].level == highest)

    def on(self, signature: Signature, headers: Mapping[str, TensorInfo]) -> Adapter:
        """The adapter for a checkpoint: itself, if its rules do not depend on headers."""
        return self.trace(self, signature, headers) if self.trace else self

    def rules_of(self, declared: Declared) -> list[tuple[Rule, dict[str, str]]]:
        """`matching`, with the `checkpoint_names` of the classes of the parameter's layers."""
        found = list(self.matching(declared.name))
        return (
            [(self._renamed(rule, declared.checkpoint_names), bindings) for rule, bindings in found]
            if declared.checkpoint_names
            else found
        )

    def _renamed(self, rule: Rule, words: tuple[tuple[str, str | tuple[str, ...]], ...]) -> Rule:
        key = id(rule), words
        if key not in self._renamed_rules:
            own = Words(dict(words))
            self._renamed_rules[key] = changed(rule, lambda source: renamed_source(source, own))
        return self._renamed_rules[key]

    def drops_tensor(self, name: str, names: Names) -> bool:
        """Whether a drop applies to a tensor, by the name that drops use."""
        return any(drop.means(name, names) is not None for drop in self.drops)

    def idle(self, names: Iterable[str]) -> dict[str, Rule]:
        """The names that patterns of rules spell but that are none of these parameters, with the rule."""
        claimed = {digits(name)[0] for name in names}
        spelt = {name: rule for rule in self.rules for name in spelled(rule.pattern)}
        return {name: rule for name, rule in spelt.items() if name not in claimed}

    def names(self, headers: Mapping[str, TensorInfo]) -> Names:
        """A checkpoint's tensors by the names that rules use; a tensor without the infix takes precedence."""
        if self.infix:
            short = {name: name.replace(f".{self.infix}.", ".") for name in headers}
            headers = {name if short[name] in headers else short[name]: info for name, info in headers.items()}
        return Names(headers, self.prefixes, self.outside())

    def outside(self) -> set[str]:
        """First sections of tensors that never have the prefix: also those that only parameters outside of it read."""
        first: dict[bool, set[str]] = {True: set(), False: set()}
        for rule in self.rules:
            below = rule.pattern.startswith(self.prefix)
            first[below] |= {first_section(expr) for expr in rule.own if isinstance(expr, Source)}
        return {*self.unprefixed, *(first[False] - first[True])}

    def default_axes(self, declared: Axes) -> Axes:
        """The default storage of a source without axes, with the sizes of the declaration; () without a default."""
        if len(declared) == 1:
            return declared
        sizes = {node.name: node.size for axis in declared for node in axis.walk()}
        for text in self.defaults:
            axes = parse(text)
            if len(axes) == len(declared) and all(axis.name in sizes for axis in axes):
                return tuple(axis.sized(sizes) for axis in axes)
        return ()


def tied(own: Expr, *others: Expr, when: bool, help: str = "") -> Tied:
    """`own` if the checkpoint has it; otherwise the first of `others` that it has, if the config states that they are
    tied. `help` is as for `either`.

    An untied parameter that is absent is an error. One that is tied and present is used, and compared with the other.
    """
    return Tied(own, others, when, alike=True, help=help)


def either(own: Expr, *others: Expr, help: str = "") -> Tied:
    """The first that the checkpoint has; `others` may belong to another model and have other values.

    `help` is that of the error if it has none.
    """
    return Tied(own, others, when=True, alike=False, help=help)
