"""Scales with another block size than the config's: one finding, which names the block of the checkpoint."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from bringup.adapters.algebra.pattern import match
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.quantization import block_size
from bringup.adapters.planning.rules import Rule
from bringup.adapters.schemes.part_source import PartSource, block_of, values_of
from bringup.compile.check.facts.shapes import parameters_and_tensors, sites
from bringup.compile.check.quantisation.statement import Statement
from bringup.diagnostics import Diagnostic
from bringup.grouping import listed
from bringup.spec import Shape


class Scales(NamedTuple):
    """A problem with scales: the shapes of the matrix and of its scales, the config's block, and its key."""

    problem: Problem
    matrix: Shape
    found: Shape
    block: Shape
    key: str


Parts = Mapping[str, Mapping[str, PartSource]]  # module → name → the tensor's source


def scale_mistakes(plan: Plan, problems: Sequence[Problem], place: Statement) -> tuple[list[Diagnostic], list[Problem]]:
    """One diagnostic for each block size of the checkpoint that differs from the config's, and all other problems.

    `place` is the statement of the quantisation.
    """
    scales, others = list[Scales](), list[Problem]()
    siblings = Siblings(plan)
    wrong = {name for problem in problems for name in problem.sources}
    for problem in problems:
        found = None
        if isinstance(problem.rule, Rule) and len(problem.sources) == 1:
            found = _scales(plan, problem, siblings.of(problem, problem.rule), wrong)
        scales += [found] if found else []
        others += [] if found else [problem]
    return [_finding(plan, group, place.file) for group in _by_block(scales)], others


class Siblings:
    """The other parts of the matrix of a problem's tensor; those of a parameter are computed once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._parts: dict[tuple[int, str], Parts] = {}  # by the rule and its parameter

    def of(self, problem: Problem, rule: Rule) -> Mapping[str, PartSource]:
        """Parts by name; {} if the tensor is not a part of a matrix. `rule` is the problem's."""
        (name,) = problem.sources
        key = id(rule), problem.parameter
        if key not in self._parts:
            self._parts[key] = _parts(rule, problem.parameter)
        parts = self._parts[key]
        return parts.get(_module(name.removeprefix(self.plan.prefix))) or parts.get(_module(name)) or {}


def _parts(rule: Rule, parameter: str) -> Parts:
    """The tensors that store the matrices of a parameter, by module."""
    found: dict[str, dict[str, PartSource]] = {}
    for leaf, name in rule.own_expr.leaves(match(rule.pattern, parameter) or {}):
        if isinstance(leaf, PartSource):
            found.setdefault(_module(name), {})[name] = leaf
    return found


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _scales(plan: Plan, problem: Problem, siblings: Mapping[str, PartSource], wrong: Container[str]) -> Scales | None:
    """The relation of a tensor with a wrong shape to its matrix, if it has one value for each block.

    If the codes of the matrix are `wrong` themselves, that explains the shape of its scales.
    """
    (name,) = problem.sources
    scales = siblings.get(name.removeprefix(plan.prefix)) or siblings.get(name)
    block = block_of(scales.layout) if scales else None
    if scales is None or block is None:
        return None
    for other, part in siblings.items():
        info = plan.headers.get(other) or plan.headers.get(plan.prefix + other)
        if info is None or info.name in wrong or part.of is not scales.of or block_of(part.layout) is not None:
            continue
        if matrix := values_of(part.layout, info.shape):
            shape = plan.headers[name].shape
            return Scales(problem, matrix, values_of(scales.layout, shape) or shape, block, scales.block_key)
    return None


def _by_block(scales: Sequence[Scales]) -> Iterator[list[Scales]]:
    """Groups of scales that one block explains, for rules with one block; the others grouped by equal shapes."""
    groups: dict[object, list[Scales]] = {}
    for one in scales:
        groups.setdefault((one.block, one.key), []).append(one)
    for group in groups.values():
        if block_size({(one.matrix, one.found) for one in group}):
            yield group
            continue
        apart: dict[object, list[Scales]] = {}
        for one in group:
            apart.setdefault(block_size([(one.matrix, one.found)]), []).append(one)
        yield from apart.values()


def _finding(plan: Plan, group: Sequence[Scales], file: str) -> Diagnostic:
    first, problems = group[0], [one.problem for one in group]
    parameter, sources = parameters_and_tensors(problems)
    names = listed(sources)
    found, block = block_size({(one.matrix, one.found) for one in group}), _in_words(first.block, first.key)
    if found:
        message = f"{names} have one value for blocks of {list(found)}, and `{first.key}` is {block}"
        help = f"if all of the checkpoint are so, set `{first.key}` to {_in_words(found, first.key)} in {file}"
    else:
        message = (
            f"{names} is {list(first.found)}, which matches no block size of a matrix {list(first.matrix)}; "
            f"`{first.key}` is {block}"
        )
        help = "one scale for each tensor or row is another format; were the scales saved for another matrix?"
    return Diagnostic(
        code="BU102",
        message=message,
        help=help,
        parameter=parameter,
        sources=sources,
        expected=block,
        actual=_in_words(found, first.key) if found else first.problem.actual,
        **sites(plan, first.problem),
    )


def _in_words(block: Shape, key: str) -> str:
    """A block in the config's form: a group is a number of columns, and -1 stands for all of them."""
    return str(block[-1] or -1) if key.endswith("group_size") else str(list(block))
