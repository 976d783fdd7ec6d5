"""Tensors that have the names of faulty ones, with other numbers: the same tensors of other layers or experts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.grouping import digits, listed

NUMBER = re.compile(r"\{([A-Z]\w*)\}")  # a variable of a pattern that stands for a number


def in_other_layers(plan: Plan, names: Iterable[str]) -> list[str]:
    """The tensors of the checkpoint whose names differ from these in numbers only."""
    own = set(names)
    patterns = {digits(name)[0] for name in own}
    ends = tuple({pattern.rpartition("{}")[2] for pattern in patterns if "{}" in pattern})
    alike = (name for name in plan.headers if name.endswith(ends) and name not in own) if ends else ()
    return [name for name in alike if digits(name)[0] in patterns]


def roots_of(roots: Iterable[str], names: Iterable[str]) -> list[str]:
    """These roots with the numbers of tensors below them: `h.1.mlp`, and `h.0.mlp.w` → `h.0.mlp`."""
    patterns = [digits(root) for root in roots]
    numbers = [digits(name)[1] for name in names]
    return list(dict.fromkeys(p.format(*found[: len(own)]) for p, own in patterns for found in numbers))


def exception(problem: Problem, names: Iterable[str], others: Iterable[str], source: str) -> str:
    """How to correct some layers alone: a change of the rule would break the others."""
    numbers = {digits(name)[1] for name in names}
    variables = NUMBER.findall(problem.rule.pattern) if problem.rule else []
    rule = "read the faulty ones by a rule of their own"
    if len(variables) == 1 and all(len(found) == 1 for found in numbers):
        layers = ", ".join(str(found[0]) for found in sorted(numbers))
        rule = f'write where("{variables[0]}", {{{layers}}}, {source}, S(…))'
    return f"but the rule fits {listed(others, 2)}: correct the file, or {rule}"
