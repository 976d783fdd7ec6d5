"""Tensor-parallel slices: a clip of the plan, by axis name. The same nests, fewer of their iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from bringup.adapters.plan import Entry, Plan
from bringup.adapters.region import Region, concat
from bringup.diagnostics import fail
from bringup.graphs.axes import Axes, Axis, sizes_of
from bringup.graphs.signature import Signature

Ranges = Mapping[str, tuple[int, int]]


def slice_plan(plan: Plan, axes: tuple[str, ...], rank: int, ranks: int) -> Plan:
    """What one of `ranks` holds when the named axes are divided among them.

    An axis shorter than the number of ranks is shared (each of its indices by ranks / size ranks), as grouped-query
    key heads are. Raises BU130 where a size does not divide.
    """
    sliced = Plan(plan.signature, plan.headers, dropped=plan.dropped, wanted=plan.wanted)
    for name, entry in plan.entries.items():
        ranges = {
            axis: _range(name, axis, size, rank, ranks)
            for axis, size in sizes_of(entry.declared.axes).items()
            if axis in axes
        }
        region = clip(entry.region, ranges)
        declared = replace(entry.declared, axes=region.axes)
        if declared.pack and math.prod(declared.storage[0]) * declared.pack[1] != math.prod(region.shape):
            raise fail("BU130", f"`{name}`: {ranks} ranks cut through words of {declared.pack[1]} values")
        sliced.entries[name] = Entry(declared, entry.rule, entry.sources, region)
    sliced.signature = Signature({name: entry.declared for name, entry in sliced.entries.items()})
    return sliced


def _range(name: str, axis: str, size: int, rank: int, ranks: int) -> tuple[int, int]:
    if size < ranks and ranks % size == 0:
        at = rank * size // ranks
        return at, at + 1
    if size % ranks:
        raise fail(
            "BU130",
            f"`{name}`: axis `{axis}` of size {size} does not divide among {ranks} ranks",
            help=f"use a number of ranks that divides {size}, or keep `{axis}` whole, or pad it in the adapter",
        )
    return rank * size // ranks, (rank + 1) * size // ranks


def clip(region: Region, ranges: Ranges) -> Region:
    """Keeps a range of some named axes, wherever they stand: in products, and in each part of a sum."""
    for k, axis in enumerate(region.axes):
        if axis.sum and _names(axis) & ranges.keys():
            starts = [sum(part.size for part in axis.parts[:i]) for i in range(len(axis.parts))]
            windows = [region.window(k, at, at + p.size) for at, p in zip(starts, axis.parts, strict=True)]
            return concat([clip(window, ranges) for window in windows], k, axis.name)
    factors = tuple(factor for axis in region.axes for factor in axis.factors(set()))
    flat = replace(region, axes=factors)
    for k, factor in enumerate(factors):
        if factor.name in ranges:
            flat = flat.window(k, *ranges[factor.name])
    return replace(flat, axes=_regrouped(region.axes, flat.axes))


def _names(axis: Axis) -> set[str]:
    return {node.name for node in axis.walk()}


def _regrouped(axes: Axes, factors: Axes) -> Axes:
    """The same tree of axes over factors of new sizes."""
    rest = iter(factors)

    def rebuild(axis: Axis) -> Axis:
        if not axis.parts or axis.sum:
            return next(rest)
        parts = tuple(rebuild(part) for part in axis.parts)
        return replace(axis, parts=parts, size=math.prod(part.size for part in parts))

    return tuple(rebuild(axis) for axis in axes)
