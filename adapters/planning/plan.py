"""From rules and headers to a plan: for every parameter the copy nests that fill it. No tensor is read.

Parameters of one rule with sources of equal shapes and dtypes (the layers of a model) share one proof and one region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from operator import attrgetter

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.pattern import Unbound
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.drops import set_aside
from bringup.adapters.planning.problems import (
    Problem,
    axes_problem,
    dtypes,
    inputs,
    odd_ones,
    present_misfits,
    shapes,
    unbound,
    unclaimed,
    unused,
)
from bringup.adapters.planning.rules import Drop, Rule, Tied
from bringup.graphs.core.axes import Axes, AxesError, Axis, shape_of, show, sizes_of
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import TensorInfo

NAME, KIND = attrgetter("name"), attrgetter("dtype", "shape", "fixed_rank")


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter: `region` has its declared axes, over `sources`.

    `parts`: the parameters that a layout joins in it, each with the range of its sources (first index and end).
    """

    declared: Declared
    rule: Rule
    sources: tuple[TensorInfo | Computed, ...]
    region: Region
    parts: tuple[tuple[Entry, int, int], ...] = ()

    @property
    def tensors(self) -> Iterator[TensorInfo]:
        return (source for source in self.sources if isinstance(source, TensorInfo))

    def stored(self) -> Region:
        """The region as the array holds it: sub-byte values packed into words along their axis."""
        if not self.declared.pack:
            return self.region
        name, n = self.declared.pack
        words = [replace(a, parts=(), sum=False, size=a.size // n) if a.name == name else a for a in self.declared.axes]
        apart = tuple(
            replace(a, parts=(word, Axis("value", n)), sum=False) if a.name == name else a
            for a, word in zip(self.declared.axes, words, strict=True)
        )
        packed = replace(self.region, axes=tuple(replace(a, name="") if a.name == name else a for a in apart))
        return packed.to((*words, Axis("value", n))).bits(self.declared.storage[1], "")


@dataclass
class Plan:
    """Every parameter's entry, the tensors that were dropped, and the problems."""

    signature: Signature
    headers: Mapping[str, TensorInfo]
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    dropped: dict[str, Drop] = field(default_factory=dict[str, Drop])
    unread: list[str] = field(default_factory=list[str])  # neither read nor dropped
    requests: list[tuple[str, Iterable[str]]] = field(
        default_factory=list[tuple[str, Iterable[str]]]
    )  # tensors, by parameter
    problems: list[Problem] = field(default_factory=list[Problem])
    compare: list[tuple[Entry, Entry]] = field(default_factory=list[tuple[Entry, Entry]])  # tied, yet both present
    prefix: str = ""  # of the checkpoint's names, which rules omit
    cut: dict[str, Drop] = field(default_factory=dict[str, Drop])  # drops of the unread part of a tensor

    @cached_property
    def required(self) -> dict[str, str]:
        """The tensors that parameters read, each with its first parameter. Complete after planning."""
        wanted: dict[str, str] = {}
        for parameter, names in self.requests:
            for name in names:
                wanted.setdefault(name, parameter)
        return wanted

    def aliases(self) -> dict[str, str]:
        """Parameters that hold the same values as an earlier one, by construction: {later: first}."""
        first: dict[tuple[object, ...], str] = {}
        same: dict[str, str] = {}
        for name, entry in self.entries.items():
            key = (entry.sources, entry.region.nests, entry.declared.storage)
            if first.setdefault(key, name) != name:
                same[name] = first[key]
        return same


def make_plan(signature: Signature, adapter: Adapter, headers: Mapping[str, TensorInfo]) -> Plan:
    """Plans every parameter of a signature. Problems are collected; only an unbound variable raises (BU027)."""
    adapter = adapter.on(signature, headers)
    plan = Plan(signature, headers, prefix=adapter.prefix)
    names = adapter.names(headers)
    proved: dict[tuple[object, ...], tuple[Region, tuple[TensorInfo | Computed, ...]]] = {}
    refused: dict[tuple[object, ...], list[tuple[int, Axes]]] = {}
    idle = cache(partial(adapter.idle, signature))
    for hook in adapter.before:
        hook.read.clear()
    for declared in signature.values():
        claims = adapter.rules_of(declared)
        if len(claims) != 1:
            plan.problems.append(unclaimed(declared, claims, idle))
            _excuse(plan, declared, claims, names)
            continue
        rule, bindings = claims[0]
        try:
            expr = _choose(plan, adapter, declared, rule, bindings, names)
            if expr is not None:
                _plan_one(plan, adapter, declared, rule, expr, bindings, names, proved, refused)
        except Unbound as error:
            raise unbound(rule, error) from None
    wanted = set(chain.from_iterable(tensors for _, tensors in plan.requests))
    aside = set_aside(wanted, adapter.drops, names)
    plan.dropped, plan.cut, plan.unread = aside.dropped, aside.cut, aside.unread
    plan.problems += aside.problems
    plan.problems += [unused(hook, adapter, signature) for hook in adapter.unused(signature)]
    return plan


def _excuse(plan: Plan, declared: Declared, claims: Iterable[tuple[Rule, dict[str, str]]], names: Names) -> None:
    """Records the tensors that a parameter without exactly one rule would read: these are not reported as unread."""
    leaves = [name for rule, bindings in claims for _, name in rule.own_expr.leaves(bindings)]
    behind = [found for name in leaves or [names.bare(declared.name)] for found in names.behind(name)]
    plan.requests.append((declared.name, [found.name for found in behind if isinstance(found, TensorInfo)]))


def _choose(
    plan: Plan,
    adapter: Adapter,
    declared: Declared,
    rule: Rule,
    bindings: Mapping[str, str],
    names: Names,
) -> Expr | None:
    """The expression that applies to this checkpoint; chooses between the alternatives of a tie."""
    if not isinstance(rule.expr, Tied):
        return rule.expr
    own, others, when = rule.expr.own, rule.expr.others, rule.expr.when
    behind = [found for _, name in own.leaves(bindings) for found in names.behind(name)]
    sources = tuple(found for found in behind if isinstance(found, str))
    present = not sources
    if not present and not when:
        plan.requests.append((declared.name, [f if isinstance(f, str) else f.name for f in behind]))
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
    other = next((expr for expr in others if all(name in names for _, name in expr.leaves(bindings))), None)
    if present and when and rule.expr.alike and other:
        with suppress(AxesError):  # reported when `own` is planned
            candidates = [_entry(adapter, declared, rule, expr, bindings, names) for expr in (own, other)]
            plan.compare += [(candidates[0], candidates[1])] if candidates[0] and candidates[1] else []
    if present:
        return own
    if other:
        return other

    def present_leaves(expr: Expr) -> int:
        return sum(name in names for _, name in expr.leaves(bindings))

    return max((*reversed(others), own), key=present_leaves)  # of equally many, the last


def _entry(
    adapter: Adapter, declared: Declared, rule: Rule, expr: Expr, bindings: Mapping[str, str], names: Names
) -> Entry | None:
    scope = _scope(adapter, declared, expr, bindings, names)
    region = _evaluate(declared, expr, scope)
    return None if scope.misfits or scope.wrong else Entry(declared, rule, tuple(scope.sources), region)


def _plan_one(
    plan: Plan,
    adapter: Adapter,
    declared: Declared,
    rule: Rule,
    expr: Expr,
    bindings: Mapping[str, str],
    names: Names,
    proved: dict[tuple[object, ...], tuple[Region, tuple[TensorInfo | Computed, ...]]],
    refused: dict[tuple[object, ...], list[tuple[int, Axes]]],
) -> None:
    infos, absent = names.found(expr.names(bindings))
    plan.requests.append((declared.name, [*absent, *map(NAME, infos)]))
    if absent:
        help = rule.expr.help if isinstance(rule.expr, Tied) else ""
        plan.problems.append(Problem(code="BU101", parameter=declared.name, rule=rule, sources=absent, help=help))
        if infos:
            scope = _scope(adapter, declared, expr, bindings, names)
            plan.problems += shapes(declared, rule, present_misfits(_behind(expr.leaves(bindings), names), scope))
        return
    words = tuple(value for name, value in bindings.items() if not name.isupper())
    facts = (id(expr), declared.axes, declared.dtype, words, *map(KIND, infos))
    if known := proved.get(facts):
        region, sources = known
        fresh = iter(infos)
        sources = tuple([source if isinstance(source, Computed) else next(fresh) for source in sources])
        plan.entries[declared.name] = Entry(declared, rule, sources, region)
        return
    if wrong_ones := refused.get(facts):
        plan.problems += shapes(declared, rule, [(infos[at], axes) for at, axes in wrong_ones])
        return
    scope = _scope(adapter, declared, expr, bindings, names)
    try:
        region = _evaluate(declared, expr, scope)
    except AxesError as error:
        plan.problems += (
            inputs(declared, rule, scope.wrong)
            or odd_ones(declared, rule, _behind(expr.leaves(bindings), names))
            or [axes_problem(declared, rule, infos, error, adapter.defaults)]
        )
        return
    wrong = shapes(declared, rule, scope.misfits) + inputs(declared, rule, scope.wrong)
    wrong = wrong or dtypes(declared, rule, region, scope)
    plan.problems += wrong
    if scope.misfits:
        places = {info.name: at for at, info in enumerate(infos)}
        refused[facts] = [(places[info.name], axes) for info, axes in scope.misfits]
    if not wrong:
        sources = tuple(scope.sources)
        proved[facts] = region, sources
        plan.entries[declared.name] = Entry(declared, rule, sources, region)


def _behind(leaves: Iterable[tuple[Source, str]], names: Names) -> list[tuple[Source, list[TensorInfo | str]]]:
    return [(leaf, names.behind(name)) for leaf, name in leaves]


def _scope(adapter: Adapter, declared: Declared, expr: Expr, bindings: Mapping[str, str], names: Names) -> Scope:
    defaults = adapter.default_axes(declared.axes) if isinstance(expr, Source) else ()
    return Scope(sizes_of(declared.axes), defaults, names, bindings)


def _evaluate(declared: Declared, expr: Expr, scope: Scope) -> Region:
    """The region that fills a parameter's array. Raises AxesError if the axes do not match the declared ones."""
    region = expr.region(scope)
    if scope.misfits:
        return region
    unnamed = [axis for axis in region.axes if not axis.name and not axis.parts]
    if unnamed:
        region = _by_position(region, declared.axes)
    return region.to(declared.axes)


def _by_position(region: Region, declared: Axes) -> Region:
    """Names a source's unnamed axes by position, if no two of equal size could be exchanged."""
    if region.shape != shape_of(declared):
        raise AxesError(
            f"shape is {list(region.shape)} and the rule names no axes; the parameter is `{show(declared)}`"
        )
    if len(set(region.shape)) < len(region.shape):
        raise AxesError(
            f"the shape {list(region.shape)} does not show which axis is which, and the rule does not state it; "
            f"the parameter is `{show(declared)}`"
        )
    return replace(region, axes=declared)
