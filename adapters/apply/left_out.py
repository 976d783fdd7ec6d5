"""Tensors that may be dropped only for certain values: a bias of zeros, an index that is the identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.rules import Drop
from bringup.diagnostics import BringupError, Diagnostic
from bringup.grouping import grouped
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np


def wrongly_left_out(plan: Plan, read: Callable[[TensorInfo], np.ndarray]) -> Iterator[Diagnostic]:
    """BU115 for each drop and each reason why tensors must not be dropped. Reads only the tensors of such drops."""
    names = Names(plan.headers, (plan.prefix,) if plan.prefix else ())
    found: dict[tuple[int, str], tuple[Drop, list[str]]] = {}
    for name, drop in plan.dropped.items():
        why = drop.wrong(names.bare(name), read(plan.headers[name])) if drop.wrong else ""
        if why:
            found.setdefault((id(drop), why), (drop, []))[1].append(name)
    for (_, why), (drop, tensors) in found.items():
        yield Diagnostic(
            code="BU115",
            message=f"cannot drop `{', '.join(grouped(tensors))}` as {drop.why}: {why}",
            help="correct the config, or give the checkpoint that belongs to it",
            sources=tuple(tensors),
            where=drop.site,
        )


def refuse_wrongly_left_out(plan: Plan, read: Callable[[TensorInfo], np.ndarray]) -> None:
    """Raises BU115 if a tensor must not be dropped."""
    if findings := list(wrongly_left_out(plan, read)):
        raise BringupError(*findings)
