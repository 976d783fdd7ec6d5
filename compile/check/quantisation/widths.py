"""Codes with another number of bits than the config states for some modules: one finding for each two numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.rules import Rule
from bringup.adapters.schemes.part_source import PartSource, dimensions
from bringup.compile.check.facts.shapes import parameters_and_tensors, sites
from bringup.compile.check.quantisation.scales import Siblings
from bringup.compile.check.quantisation.statement import Statement
from bringup.diagnostics import Diagnostic
from bringup.graphs.core.axes import shape_of
from bringup.grouping import listed
from bringup.spec import DTYPES

BITS = (2, 3, 4, 8)


def width_mistakes(plan: Plan, problems: Sequence[Problem], place: Statement) -> tuple[list[Diagnostic], list[Problem]]:
    """One diagnostic for each number of bits of codes that differs from the config's, and all other problems.

    Scales of these matrices have the right shape: with another size of the matrix they would not. `place` is the
    statement of the quantisation.
    """
    wrong = {name for problem in problems for name in problem.sources}
    found: dict[tuple[int, int], list[Problem]] = {}
    others, siblings = list[Problem](), Siblings(plan)
    for problem in problems:
        bits = None
        if isinstance(problem.rule, Rule) and len(problem.sources) == 1:
            parts = siblings.of(problem, problem.rule)
            bits = _bits(plan, problem, parts) if _has_right_scales(plan, parts, wrong) else None
        if bits:
            found.setdefault(bits, []).append(problem)
        else:
            others.append(problem)
    return [_finding(plan, *bits, some, place.group) for bits, some in found.items()], others


def _has_right_scales(plan: Plan, siblings: Mapping[str, PartSource], wrong: set[str]) -> bool:
    """Whether a part with one value for some columns, not all, has the expected shape."""
    for name, part in siblings.items():
        columns = next((one for one in dimensions(part.layout) if one.name == "in"), None)
        info = plan.headers.get(name) or plan.headers.get(plan.prefix + name)
        if columns and columns.of and not columns.packed and columns.of > 1 and info and info.name not in wrong:
            return True
    return False


def _bits(plan: Plan, problem: Problem, siblings: Mapping[str, PartSource]) -> tuple[int, int] | None:
    """The bits by the config and those by the tensor, if its number of words matches the latter."""
    (name,) = problem.sources
    part = siblings.get(name.removeprefix(plan.prefix)) or siblings.get(name)
    shape, wanted = plan.headers[name].shape, shape_of(problem.axes)
    layout = dimensions(part.layout) if part else ()
    off = [k for k, sizes in enumerate(zip(shape, wanted, strict=False)) if sizes[0] != sizes[1]]
    if part is None or len(shape) != len(wanted) or len(off) != 1 or off[0] < len(shape) - len(layout):
        return None
    one = layout[off[0] - len(shape)]
    if not one.packed:
        return None
    declared = DTYPES[part.dtype].bits * one.times // one.of
    bits, rest = divmod(declared * shape[off[0]], wanted[off[0]])
    return (declared, bits) if not rest and bits in BITS else None


def _finding(plan: Plan, declared: int, bits: int, problems: Sequence[Problem], group: str) -> Diagnostic:
    parameter, sources = parameters_and_tensors(problems)
    return Diagnostic(
        code="BU102",
        message=f"{listed(sources)} have codes of {bits} bits, and the config states {declared}",
        help=f"correct the bits that {group} states for these modules",
        parameter=parameter,
        sources=sources,
        expected=str(declared),
        actual=str(bits),
        **sites(plan, problems[0]),
    )
