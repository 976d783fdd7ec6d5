"""Tensors whose shape differs from the graph's: grouped by mistake, with a message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.compile.check.facts.other_layers import exception, in_other_layers
from bringup.diagnostics import Diagnostic, Sites
from bringup.graphs.core.axes import Axes, shape_of, show, sizes_of
from bringup.grouping import grouped, joined
from bringup.spec import Site

if TYPE_CHECKING:
    from bringup.compile.check.facts.config_keys import ConfigWords

Rule = Callable[[Problem], Site | None]


class Off(NamedTuple):
    """An axis that has another size in the checkpoint. `divided`: several parameters have a part of it each."""

    axis: str
    wanted: int
    found: int
    divided: bool = False

    @property
    def names(self) -> list[str]:
        """The elementary axes that it consists of."""
        return re.findall(r"[^\W\d]\w*", self.axis)


def first_sites(problems: Iterable[Problem]) -> Rule:
    """The rule that stands for a problem: the first, if two rules read the same tensors."""
    first: dict[object, Site | None] = {}
    for p in problems:
        first.setdefault((p.code, p.sources), p.rule and p.rule.site)
    return lambda p: first[p.code, p.sources] if p.sources else p.rule and p.rule.site


def parameters_and_tensors(problems: Sequence[Problem]) -> tuple[str, tuple[str, ...]]:
    """The grouped parameters, and their tensors."""
    sources = dict.fromkeys(name for problem in problems for name in problem.sources)
    return ", ".join(grouped(dict.fromkeys(p.parameter for p in problems if p.parameter))), tuple(sources)


def sites(plan: Plan, problem: Problem) -> Sites:
    """The positions of a problem's diagnostic."""
    declared = plan.signature.get(problem.parameter)
    site = Sites(where=problem.rule and problem.rule.site, declared=declared and declared.site)
    return site | stored(plan, problem.sources)


def stored(plan: Plan, sources: Sequence[str]) -> Sites:
    """The first of these tensors, and its file if it has one."""
    info = plan.headers.get(sources[0]) if sources else None
    return Sites(file=str(info.file), tensor=info.name) if info and info.file else Sites()


def shape_mistakes(
    plan: Plan, problems: Sequence[Problem], site: Rule, words: ConfigWords | None
) -> Iterator[Diagnostic]:
    """One diagnostic for each mistake: an axis of another size, wherever it occurs, or a rule and its shapes."""
    groups: dict[object, list[Problem]] = {}
    several: list[tuple[Problem, list[Off]]] = []
    for p, off in off_axes(plan, problems):
        if len(off) == 1:
            groups.setdefault(off[0], []).append(p)
        else:
            several.append((p, off))
    for p, off in several:
        new = [axis for axis in off if axis not in groups]
        if off and not _is_reversed(p) and len(new) < min(2, len(off)):  # the other axes are reported already
            groups.setdefault((new or off)[0], []).append(p)
        else:
            place = site(p) if p.axes else None  # scalars do not depend on the rule
            groups.setdefault((place, show(p.axes), shape_of(p.axes), p.actual), []).append(p)
    for key, facts in _by_factor(plan, groups).items():
        yield _diagnostic(plan, key if isinstance(key, Off) else None, facts, words)


def _by_factor(plan: Plan, groups: dict[object, list[Problem]]) -> dict[object, list[Problem]]:
    """`h d` and `g d` that differ by the same ratio are one mistake, in `d`."""
    alike: dict[Fraction, list[Off]] = {}
    for key in groups:
        if isinstance(key, Off):
            alike.setdefault(Fraction(key.found, key.wanted), []).append(key)
    for ratio, offs in alike.items():
        shared = set(offs[0].axis.split()).intersection(*(off.axis.split() for off in offs))
        if len(offs) == 1 or len(shared) != 1:
            continue
        name = shared.pop()
        size = sizes_of(plan.signature[groups[offs[0]][0].parameter].axes).get(name)
        if size and (size * ratio).denominator == 1:  # an axis that only the rule names has no size of its own
            groups[Off(name, size, int(size * ratio))] = [fact for off in offs for fact in groups.pop(off)]
    return groups


def _shape(problem: Problem) -> list[int]:
    return [int(size) for size in problem.actual.strip("[]").split(",") if size.strip()]


def _is_reversed(problem: Problem) -> bool:
    return _shape(problem) == list(shape_of(problem.axes))[::-1]


def off_axes(plan: Plan, problems: Sequence[Problem]) -> Iterator[tuple[Problem, list[Off]]]:
    """Each problem with its axes of another size, by the elementary sizes in them: `vocab` of `out:vocab`, `h d`."""
    known: dict[tuple[int, int, str], list[Off]] = {}  # layers share their axes objects
    for problem in problems:
        axes = plan.signature[problem.parameter].axes
        key = id(axes), id(problem.axes), problem.actual
        if key not in known:
            known[key] = _off(axes, problem.axes, problem.actual)
        yield problem, known[key]


@lru_cache(maxsize=4096)  # experts are alike
def _off(of_parameter: Axes, axes: Axes, actual: str) -> list[Off]:
    found = [int(size) for size in actual.strip("[]").split(",") if size.strip()]
    if len(found) != len(axes):
        return []
    declared = {node.name: node for axis in of_parameter for node in axis.walk() if node.name}
    differing: list[Off] = []
    for axis, size in zip(axes, found, strict=True):
        own = declared.get(axis.name, axis)
        if axis.size != size and own.size != axis.size:
            differing.append(Off(axis.name, axis.size, size, divided=True))
        elif axis.size != size:
            differing.append(Off(" ".join(f.name or str(f) for f in own.factors(set())), axis.size, size))
    return differing


def keys_of(off: Off, parameters: Iterable[str], words: ConfigWords) -> tuple[str, ...]:
    """The config keys that determine an axis of the tensors of these parameters."""
    parameters = dict.fromkeys(parameters) if off.divided else [next(iter(parameters))]
    return tuple(dict.fromkeys(key for name in parameters for key in words.of(name, off.names)))


def _diagnostic(plan: Plan, off: Off | None, facts: list[Problem], words: ConfigWords | None) -> Diagnostic:
    first = facts[0]
    parameter, sources = parameters_and_tensors(facts)
    wanted, tensors = list(shape_of(first.axes)), ", ".join(grouped(sources))
    if math.prod(wanted) == 1 and {axis.name for axis in first.axes} <= {"n"}:  # a part of a quantised matrix
        named = ()
        message = f"`{tensors}` is {first.actual}, and the format has one value for each matrix"
        help = "save one value for each; values of fused matrices belong to another layout"
    elif off:
        message = f"axis `{off.axis}` of `{tensors}` is {off.found} in the checkpoint, {off.wanted} in the graph"
        named = keys_of(off, (p.parameter for p in facts), words) if words else ()
        keys = [f"`{key}`" for key in named]
        message += f" ({joined(keys, 'and')} of the config)" if keys else ""
        help = (
            f"correct {joined(keys, 'or') or f'the size of `{off.axis}` in the config'}, "
            "or the checkpoint belongs to another config"
        )
        if off.axis == "vocab" and off.found > off.wanted:
            help = f"the vocabulary is padded: set vocab_size to {off.found}, or cut the rows in the adapter: " + (
                f'S(…, "vocab m", vocab={off.found}).split("vocab", {off.wanted}, {off.found - off.wanted})[0], '
                'and drop(…, why="padding")'
            )
    else:
        named = ()
        message = f"`{tensors}` is {first.actual}, the rule expects {wanted}, axes `{show(first.axes)}`"
        help = "the config or the rule's axes are not those of this checkpoint"
        if _is_reversed(first):
            help = _transposed(plan, first, sources)
    return Diagnostic(
        code="BU102",
        message=message,
        help=help,
        parameter=parameter,
        sources=sources,
        expected=str(wanted),
        actual=first.actual,
        config_key=named[0] if len(named) == 1 else "",
        **sites(plan, first),
    )


def _transposed(plan: Plan, problem: Problem, sources: Sequence[str]) -> str:
    order = " ".join(axis.name or str(axis) for axis in problem.axes[::-1])
    wanted = shape_of(problem.axes)
    others = [name for name in in_other_layers(plan, sources) if plan.headers[name].shape == wanted]
    if others:
        return "it is stored the other way round, " + exception(problem, sources, others, f'S(…, "{order}")')
    return f'it is stored the other way round: write S(…, "{order}"); the transpose follows'
