"""From rules and headers to a plan: for every parameter the copy nests that fill it. No tensor is read.

Parameters of one rule whose sources look alike (the layers of a model) share one proof and one region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter

from bringup.adapters.computed import Computed
from bringup.adapters.expr import Expr, Source
from bringup.adapters.names import Names, Translated
from bringup.adapters.pattern import Unbound, closed, match
from bringup.adapters.problems import (
    Problem,
    axes_problem,
    dtypes,
    misfits_beside,
    odd_ones,
    shapes,
    unbound,
    unclaimed,
)
from bringup.adapters.region import Region
from bringup.adapters.rules import Adapter, Drop, Rule, Tied
from bringup.adapters.scope import Scope
from bringup.graphs.axes import Axes, AxesError, Axis, shape_of, show, sizes_of
from bringup.graphs.signature import Declared, Signature
from bringup.spec import TensorInfo

NAME, KIND = attrgetter("name"), attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter: `region` has its declared axes, over `sources`."""

    declared: Declared
    rule: Rule
    sources: tuple[TensorInfo | Computed, ...]
    region: Region

    @property
    def tensors(self) -> Iterator[TensorInfo]:
        return (source for source in self.sources if isinstance(source, TensorInfo))

    def stored(self) -> Region:
        """The region as the array holds it: sub-byte values packed into words along their axis."""
        if not self.declared.pack:
            return self.region
        name, n = self.declared.pack
        words = [replace(a, parts=(), size=a.size // n) if a.name == name else a for a in self.declared.axes]
        apart = tuple(
            replace(a, parts=(word, Axis("value", n))) if a.name == name else a
            for a, word in zip(self.declared.axes, words, strict=True)
        )
        packed = replace(self.region, axes=tuple(replace(a, name="") if a.name == name else a for a in apart))
        return packed.to((*words, Axis("value", n))).bits(self.declared.storage[1], "")


@dataclass(slots=True)
class Plan:
    """Every parameter's entry, the tensors that were dropped, and what does not fit."""

    signature: Signature
    headers: Mapping[str, TensorInfo]
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    dropped: dict[str, Drop] = field(default_factory=dict[str, Drop])
    wanted: dict[str, str] = field(default_factory=dict[str, str])  # tensor → first parameter that asks for it
    problems: list[Problem] = field(default_factory=list[Problem])
    compare: list[tuple[Entry, Entry]] = field(default_factory=list[tuple[Entry, Entry]])  # tied, yet both present
    prefix: str = ""  # of the checkpoint's names, which rules leave out
    cut: dict[str, Drop] = field(default_factory=dict[str, Drop])  # drops of what rules leave of a tensor

    def aliases(self) -> dict[str, str]:
        """Parameters that hold the same values as an earlier one, by construction: {later: first}."""
        first: dict[tuple[object, ...], str] = {}
        same: dict[str, str] = {}
        for name, entry in self.entries.items():
            key = (entry.sources, entry.region.nests, entry.declared.storage)
            if first.setdefault(key, name) != name:
                same[name] = first[key]
        return same


def make_plan(
    signature: Signature, adapter: Adapter, headers: Mapping[str, TensorInfo], dialect: Adapter | None = None
) -> Plan:
    """Plans every parameter of a signature. Problems are collected; only a name that has no meaning raises (BU027).

    `dialect` makes the names that the adapter uses from those of a checkpoint in another format (GGUF).
    """
    plan = Plan(signature, headers, prefix=adapter.prefix)
    names = Translated(headers, dialect) if dialect else Names(headers, adapter.prefixes, adapter.outside())
    proved: dict[tuple[object, ...], tuple[Region, tuple[TensorInfo | Computed, ...]]] = {}
    idle = cache(partial(adapter.idle, signature))
    for declared in signature.values():
        claims = list(adapter.matching(declared.name))
        if len(claims) != 1:
            plan.problems.append(unclaimed(declared, claims, idle))
            _excuse(plan, declared, claims, names)
            continue
        rule, bindings = claims[0]
        try:
            expr = _choose(plan, adapter, declared, rule, bindings, names)
            if expr is not None:
                _plan_one(plan, adapter, declared, rule, expr, bindings, names, proved)
        except Unbound as error:
            raise unbound(rule, error) from None
    _drop(plan, (*adapter.drops, *(dialect.drops if dialect else ())), names)
    return plan


def _excuse(plan: Plan, declared: Declared, claims: Iterable[tuple[Rule, dict[str, str]]], names: Names) -> None:
    """Notes the tensors that a parameter without one rule would read: they are not unread for a reason of their own."""
    meant = [name for rule, bindings in claims for _, name in rule.made.leaves(bindings)]
    for name in meant or [names.bare(declared.name)]:
        for found in names.behind(name):
            if isinstance(found, TensorInfo):
                plan.wanted.setdefault(found.name, declared.name)


def _choose(
    plan: Plan,
    adapter: Adapter,
    declared: Declared,
    rule: Rule,
    bindings: Mapping[str, str],
    names: Names,
) -> Expr | None:
    """The expression that holds for this checkpoint: decides a tie."""
    if not isinstance(rule.expr, Tied):
        return rule.expr
    own, other, when = rule.expr.own, rule.expr.other, rule.expr.when
    behind = [found for _, name in own.leaves(bindings) for found in names.behind(name)]
    sources = tuple(found for found in behind if isinstance(found, str))
    present = not sources
    if not present and not when:
        plan.wanted |= {f if isinstance(f, str) else f.name: declared.name for f in behind}
        plan.problems.append(
            Problem(
                code="BU109",
                parameter=declared.name,
                rule=rule,
                sources=sources,
                message="the checkpoint does not have it and the config does not tie it",
                help="set tie_word_embeddings to true if the model was trained tied; nothing is tied silently",
            )
        )
        return None
    if present and when and all(name in names for _, name in other.leaves(bindings)):
        with suppress(AxesError):  # it is told when `own` is planned
            made = [_entry(adapter, declared, rule, expr, bindings, names) for expr in (own, other)]
            plan.compare += [(made[0], made[1])] if made[0] and made[1] else []
    return own if present else other


def _entry(
    adapter: Adapter, declared: Declared, rule: Rule, expr: Expr, bindings: Mapping[str, str], names: Names
) -> Entry | None:
    scope = _scope(adapter, declared, expr, bindings, names)
    region = _evaluate(declared, expr, scope)
    return None if scope.misfits else Entry(declared, rule, tuple(scope.sources), region)


def _plan_one(
    plan: Plan,
    adapter: Adapter,
    declared: Declared,
    rule: Rule,
    expr: Expr,
    bindings: Mapping[str, str],
    names: Names,
    proved: dict[tuple[object, ...], tuple[Region, tuple[TensorInfo | Computed, ...]]],
) -> None:
    leaves = [(leaf, names.behind(name)) for leaf, name in expr.leaves(bindings)]
    found = [one for _, behind in leaves for one in behind]
    infos = [info for info in found if isinstance(info, TensorInfo)]
    absent = tuple(dict.fromkeys(name for name in found if isinstance(name, str))) if len(infos) < len(found) else ()
    for name in (*absent, *map(NAME, infos)):
        plan.wanted.setdefault(name, declared.name)
    scope = _scope(adapter, declared, expr, bindings, names)
    if absent:
        plan.problems.append(Problem(code="BU101", parameter=declared.name, rule=rule, sources=absent))
        plan.problems += shapes(declared, rule, misfits_beside(leaves, scope))
        return
    words = tuple(value for name, value in bindings.items() if not name.isupper())
    facts = (id(expr), declared.axes, declared.dtype, words, *map(KIND, infos))
    if known := proved.get(facts):
        region, sources = known
        fresh = iter(infos)
        sources = tuple(next(fresh) if isinstance(source, TensorInfo) else source for source in sources)
        plan.entries[declared.name] = Entry(declared, rule, sources, region)
        return
    try:
        region = _evaluate(declared, expr, scope)
    except AxesError as error:
        plan.problems += odd_ones(declared, rule, leaves) or [
            axes_problem(declared, rule, infos, error, adapter.defaults)
        ]
        return
    wrong = shapes(declared, rule, scope.misfits) or dtypes(declared, rule, region, scope)
    plan.problems += wrong
    if not wrong:
        sources = tuple(scope.sources)
        proved[facts] = region, sources
        plan.entries[declared.name] = Entry(declared, rule, sources, region)


def _scope(adapter: Adapter, declared: Declared, expr: Expr, bindings: Mapping[str, str], names: Names) -> Scope:
    defaults = adapter.default_axes(declared.axes) if isinstance(expr, Source) else ()
    return Scope(sizes_of(declared.axes), defaults, names, bindings)


def _evaluate(declared: Declared, expr: Expr, scope: Scope) -> Region:
    """The region that fills a parameter's array. Raises AxesError when the axes cannot be brought to the declared."""
    region = expr.region(scope)
    if scope.misfits:
        return region
    unnamed = [axis for axis in region.axes if not axis.name and not axis.parts]
    if unnamed:
        region = _by_position(region, declared.axes)
    return region.to(declared.axes)


def _by_position(region: Region, declared: Axes) -> Region:
    """Names a source's unnamed axes by position: only where no two sizes could be exchanged."""
    if region.shape != shape_of(declared):
        raise AxesError(
            f"shape is {list(region.shape)} and the rule names no axes; the parameter is `{show(declared)}`"
        )
    if len(set(region.shape)) < len(region.shape):
        raise AxesError(
            f"the shape {list(region.shape)} cannot tell which axis is which and the rule does not say; "
            f"the parameter is `{show(declared)}`"
        )
    return replace(region, axes=declared)


def _drop(plan: Plan, drops: Iterable[Drop], names: Names) -> None:
    """Marks dropped tensors, and notes drops that meet fewer or more tensors than they expect, in any layer."""
    loose = list(names.items(but=plan.wanted))
    for drop in drops:
        variables = sorted(closed(drop.pattern))
        counts: dict[tuple[str, ...], int] = {}
        named = names.get(drop.pattern)  # only a drop that names a tensor excuses what rules leave of it
        if named and named.name in plan.wanted and (drop.when is None or drop.when({})):
            plan.cut.setdefault(named.name, drop)
        for name, info in loose:
            bindings = match(drop.pattern, name)
            if bindings is None or (drop.when and not drop.when(bindings)):
                continue
            plan.dropped.setdefault(info.name, drop)
            key = tuple(bindings[variable] for variable in variables)
            counts[key] = counts.get(key, 0) + 1
        least, most = drop.expect
        for key in _layers(drop.pattern, names) if least else ():
            counts.setdefault(key, 0)
        wrong: dict[int, list[tuple[str, ...]]] = {}
        for key, count in counts.items():
            if not least <= count <= most:
                wrong.setdefault(count, []).append(key)
        expected = f"{least} to {most}" if least < most else f"{least}"
        for count, keys in wrong.items():
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            first = min(keys, key=lambda key: [(len(value), value) for value in key])
            where = f" for {', '.join(map('='.join, zip(variables, first, strict=True)))}{more}" if variables else ""
            plan.problems.append(
                Problem(
                    code="BU111",
                    rule=drop,
                    expected=expected,
                    actual=str(count),
                    message=f"drop `{drop.pattern}` ({drop.why}) meets {count} tensors{where}, expects {expected}",
                )
            )


def _layers(pattern: str, names: Names) -> set[tuple[str, ...]]:
    """The layers in which a drop's tensors could be: those of any tensor that begins as the pattern does."""
    head, hole, _ = pattern.partition("}")
    if not hole or closed(pattern) != closed(head + hole):
        return {()}
    found = (match(f"{head}}}.{{rest:**}}", name) for name, _ in names.items())
    return {tuple(bindings[variable] for variable in sorted(closed(pattern))) for bindings in found if bindings}
