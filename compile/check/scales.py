"""Scales of another block size than a rule has: one finding, which names the block that the checkpoint has."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.pattern import fill, match
from bringup.adapters.algebra.values import ValueNode
from bringup.adapters.planning.adapter import Rule
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import block_size
from bringup.compile.check.shapes import parameters_and_tensors, sites
from bringup.diagnostics import Diagnostic
from bringup.grouping import listed
from bringup.spec import Shape


class Scales(NamedTuple):
    """A problem with scales: the shapes of the matrix and of its scales, and the rule's block."""

    problem: Problem
    matrix: Shape
    found: Shape
    block: Shape


class Dequantised(NamedTuple):
    """What a rule dequantises: the matrix, all that its scales are made of, and the block that shares a scale."""

    matrix: Source
    scales: tuple[Source, ...]
    block: Shape


def scale_mistakes(plan: Plan, problems: Sequence[Problem]) -> tuple[list[Diagnostic], list[Problem]]:
    """One diagnostic for each block size that the checkpoint has in place of a rule's, and all other problems."""
    scales, others = list[Scales](), list[Problem]()
    nodes: dict[int, list[Dequantised]] = {}  # by the identity of the rule
    wrong = {name for problem in problems for name in problem.sources}
    for problem in problems:
        found = None
        if isinstance(problem.rule, Rule) and len(problem.sources) == 1:
            if id(problem.rule) not in nodes:
                nodes[id(problem.rule)] = [*_dequantised(problem.rule.own_expr)]
            found = _scales(plan, problem, problem.rule, nodes[id(problem.rule)], wrong)
        scales += [found] if found else []
        others += [] if found else [problem]
    return [_finding(plan, group) for group in _alike(scales)], others


def _scales(
    plan: Plan, problem: Problem, rule: Rule, nodes: Sequence[Dequantised], wrong: Container[str]
) -> Scales | None:
    """What the rule of a tensor of the wrong shape makes of it, where it is the scales of a matrix.

    A matrix that is itself `wrong` has scales of another shape for that reason.
    """
    (name,) = problem.sources
    bare = name.removeprefix(plan.prefix)
    for node in nodes:
        bindings = next((found for leaf in node.scales if (found := match(leaf.name, bare)) is not None), None)
        if bindings is None:
            continue
        matrix = fill(node.matrix.name, {**(match(rule.pattern, problem.parameter) or {}), **bindings})
        info = plan.headers.get(matrix) or plan.headers.get(plan.prefix + matrix)
        if info and info.name not in wrong:
            return Scales(problem, info.shape, plan.headers[name].shape, node.block)
    return None


def _dequantised(expr: Expr) -> Iterator[Dequantised]:
    if isinstance(expr, ValueNode) and expr.block and len(expr.parts) == 2:
        payload, by = expr.parts
        if matrix := next(_sources(payload), None):
            yield Dequantised(matrix, tuple(_sources(by)), expr.block)
    for node in expr.inputs():
        yield from _dequantised(node)


def _sources(expr: Expr) -> Iterator[Source]:
    if isinstance(expr, Source):
        yield expr
    for node in expr.inputs():
        yield from _sources(node)


def _alike(scales: Sequence[Scales]) -> Iterator[list[Scales]]:
    """Those together that one block explains, of rules with one block; each of the others with its like."""
    groups: dict[object, list[Scales]] = {}
    for one in scales:
        groups.setdefault(one.block, []).append(one)
    for group in groups.values():
        if block_size({(one.matrix, one.found) for one in group}):
            yield group
            continue
        apart: dict[object, list[Scales]] = {}
        for one in group:
            apart.setdefault(block_size([(one.matrix, one.found)]), []).append(one)
        yield from apart.values()


def _finding(plan: Plan, group: Sequence[Scales]) -> Diagnostic:
    first, problems = group[0], [one.problem for one in group]
    parameter, sources = parameters_and_tensors(problems)
    names = listed(sources)
    found, block = block_size({(one.matrix, one.found) for one in group}), list(first.block)
    if found:
        message = f"{names} are scales of blocks of {list(found)}, and `weight_block_size` is {block}"
        help = f"if all scales of the checkpoint are so, set `weight_block_size` to {list(found)} in config.json"
    else:
        message = (
            f"{names} is {list(first.found)}, which no block size gives of a matrix {list(first.matrix)}; "
            f"`weight_block_size` is {block}"
        )
        help = "one scale a tensor or row is another format; were the scales saved for another matrix?"
    return Diagnostic(
        code="BU102",
        message=message,
        help=help,
        parameter=parameter,
        sources=sources,
        expected=str(block),
        actual=str(list(found)) if found else first.problem.actual,
        **sites(plan, first.problem),
    )
