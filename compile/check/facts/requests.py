"""Absent tensors that rules read, and the parameters that they are read for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.diagnostics import Sites
from bringup.grouping import grouped, roots

Readers = Mapping[str, list[Problem]]  # absent tensor → its readers


def parameters_of(plan: Plan, readers: Readers, names: Iterable[str]) -> str:
    """The parameters that read these absent tensors, grouped."""
    parameters = dict.fromkeys(problem.parameter for name in names for problem in readers[name])
    return ", ".join(grouped(roots(parameters, plan.signature)))


def sites_of(plan: Plan, readers: Readers, names: Iterable[str]) -> Sites:
    """The rule and the declaration of the first of them."""
    problem = readers[next(iter(names))][0]
    declared = plan.signature[problem.parameter].site
    return Sites(where=problem.rule and problem.rule.site, declared=declared)
