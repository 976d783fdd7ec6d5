"""Tensors that may be dropped only for certain values: a bias of zeros, the copy of a tensor of another rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.rules import Drop
from bringup.diagnostics import BringupError, Diagnostic
from bringup.grouping import grouped
from bringup.spec import Site, TensorInfo

if TYPE_CHECKING:
    import numpy as np


def wrongly_left_out(plan: Plan, read: Callable[[TensorInfo], np.ndarray]) -> Iterator[Diagnostic]:
    """BU115 for each drop and each reason why tensors must not be dropped. Reads only the tensors of such drops."""
    names = Names(plan.headers, (plan.prefix,) if plan.prefix else ())
    found: dict[tuple[Site, str, str], tuple[Drop, list[str]]] = {}
    for name, drop in plan.dropped.items():
        if why := _reason(plan, drop, name, names, read):
            found.setdefault((drop.site, drop.why, why), (drop, []))[1].append(name)
    for (_, _, why), (drop, tensors) in found.items():
        of_ranks = "give the files of one conversion"
        yield Diagnostic(
            code="BU115",
            message=f"cannot drop `{', '.join(grouped(tensors))}` as {drop.why}: {why}",
            help=of_ranks if drop.same_as else "correct the config, or give the checkpoint that belongs to it",
            sources=tuple(tensors),
            where=drop.site,
        )


def _reason(plan: Plan, drop: Drop, name: str, names: Names, read: Callable[[TensorInfo], np.ndarray]) -> str:
    """Why a tensor must not be dropped, "" if it may."""
    other = [names.get(drop.reads)] if drop.reads else []
    if drop.wrong and None not in other:
        infos = (plan.headers[name], *filter(None, other))
        if why := drop.wrong(names.bare(name), *map(read, infos)):
            return why
    first = plan.headers.get(drop.same_as)
    differs = first is not None and read(plan.headers[name]).tobytes() != read(first).tobytes()
    return "the values differ" if differs else ""


def refuse_wrongly_left_out(plan: Plan, read: Callable[[TensorInfo], np.ndarray]) -> None:
    """Raises BU115 if a tensor must not be dropped."""
    if findings := list(wrongly_left_out(plan, read)):
        raise BringupError(*findings)
