"""Tensors that belong together: a fused one and its parts, a quantised one and its scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bringup.adapters.algebra.expr import Source
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.rules import Rule
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.requests import Readers, parameters_of, sites_of
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic
from bringup.grouping import digits, grouped
from bringup.spec import Shape


def unread_scales(plan: Plan, tensors: Iterable[str]) -> list[str]:
    """The unread scales, zero points and similar parts in the modules of these tensors."""
    modules = {name.rpartition(".")[0] for name in tensors}
    return [name for name in plan.unread if name.rpartition(".")[0] in modules]


def fused(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """An unread tensor with as many elements as the missing ones in its module."""
    missing: dict[tuple[str, str], dict[str, Shape]] = {}
    for name, problems in readers.items():
        shape = _shape(plan, problems[0])
        if shape:
            missing.setdefault(_place(name), {})[name] = shape
    groups: dict[str, dict[str, dict[str, Shape]]] = {}
    for name in unread:
        parts = missing.get(_place(name), {})
        if len(parts) > 1 and sum(map(math.prod, parts.values())) == math.prod(plan.headers[name].shape):
            groups.setdefault(digits(name)[0], {})[name] = parts
    for group in groups.values():
        names = tuple(name for parts in group.values() for name in parts)
        whole, parts = next(iter(group.items()))
        shape = plan.headers[whole].shape
        finding = Diagnostic(
            code="BU101",
            message=f"the checkpoint has no tensor `{', '.join(grouped(names))}`",
            help=f"`{', '.join(grouped(group))}` {list(shape)} has as many elements as they have together; "
            f"if they were joined in this order: S(…){_split(shape, parts)}",
            parameter=parameters_of(plan, readers, names),
            sources=(*names, *group),
            **sites_of(plan, readers, names) | stored(plan, list(group)),
        )
        yield Cause(finding, frozenset({*names, *group}))


def _place(name: str) -> tuple[str, str]:
    """The parent of a tensor's module, and the tensor's last name."""
    module, _, leaf = name.rpartition(".")
    return module.rpartition(".")[0], leaf


def _shape(plan: Plan, problem: Problem) -> Shape | None:
    """The shape of an absent tensor, if it is the complete rule; None otherwise."""
    simple = isinstance(problem.rule, Rule) and isinstance(problem.rule.own_expr, Source)
    return plan.signature[problem.parameter].storage[0] if simple else None


def _split(shape: Shape, parts: dict[str, Shape]) -> str:
    """The call that splits the tensor, along the axis on which the parts' sizes add up."""
    for axis, size in enumerate(shape):
        rest = math.prod(shape) // size
        sizes = [math.prod(part) // rest for part in parts.values()]
        if sum(sizes) == size and all(n * rest == math.prod(p) for n, p in zip(sizes, parts.values(), strict=True)):
            return f".split({axis}, {', '.join(map(str, sizes))})"
    return ".split(…)"
