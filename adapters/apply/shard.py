"""Tensor-parallel slices: a clip of the plan, by axis name. The same nests with fewer iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from bringup.adapters.algebra.region import Region, concat
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.axes import Axes, Axis
from bringup.graphs.core.signature import Signature

Ranges = Mapping[str, tuple[int, int]]

# Axes of which ranks may hold the same index: key and value heads, `g` of `graphs/layers/attention.py`, since several
# query heads read each. Any other replicated index would be computed twice, and counted twice in a sum over ranks.
SHARED = frozenset({"g"})


def slice_plan(plan: Plan, axes: tuple[str, ...], rank: int, ranks: int) -> Plan:
    """The parameters of one of `ranks`, if the named axes are divided among them.

    An axis in SHARED that is shorter than the number of ranks is replicated, each of its indices in ranks / size ranks.
    Raises BU130 if a size does not divide, or if no parameter has an axis of that name.
    """
    alike: dict[tuple[int, Axes], Region] = {}
    entries: dict[str, Entry] = {}
    for name, entry in plan.entries.items():
        key = id(entry.region), entry.declared.axes  # identical layers are clipped once
        entries[name] = _sliced(name, entry, axes, rank, ranks, alike.get(key))
        alike[key] = entries[name].region
    known = divisible(plan)
    for axis in axes:
        if plan.entries and axis not in known:
            raise fail("BU130", f"no parameter has an axis `{axis}` to divide", help=did_you_mean(axis, known))
    signature = Signature({name: entry.declared for name, entry in entries.items()})
    return replace(plan, signature=signature, entries=entries)


def divisible(plan: Plan) -> dict[str, set[int]]:
    """The names of all elementary axes, with their sizes."""
    sizes: dict[str, set[int]] = {}
    for axes in {entry.declared.axes for entry in plan.entries.values()}:
        for node in (node for axis in axes for node in axis.walk()):
            if node.name and not node.parts:
                sizes.setdefault(node.name, set()).add(node.size)
    return sizes


def _sliced(name: str, entry: Entry, axes: tuple[str, ...], rank: int, ranks: int, region: Region | None) -> Entry:
    """A rank's part of a parameter; `region` is its source region, if that is known."""
    if region is None:
        sizes = {n.name: n.size for axis in entry.declared.axes for n in axis.walk() if n.name in axes and not n.parts}
        region = clip(entry.region, {axis: share(name, axis, size, rank, ranks) for axis, size in sizes.items()})
    declared = replace(entry.declared, axes=region.axes)
    if declared.pack and math.prod(declared.storage[0]) * declared.pack[1] != math.prod(region.shape):
        raise fail("BU130", f"`{name}`: {ranks} ranks split words of {declared.pack[1]} values")
    return Entry(declared, entry.rule, entry.sources, region)


def _factors(axis: Axis) -> set[str]:
    """Names of elementary axes, which can be divided."""
    return {node.name for node in axis.walk() if node.name and not node.parts}


def share(name: str, axis: str, size: int, rank: int, ranks: int) -> tuple[int, int]:
    """A rank's range of an axis; an axis in SHARED may be shorter than the number of ranks. Raises BU130."""
    if axis in SHARED and size < ranks and ranks % size == 0:
        at = rank * size // ranks
        return at, at + 1
    if size % ranks:
        raise fail(
            "BU130",
            f"`{name}`: axis `{axis}` of size {size} does not divide among {ranks} ranks",
            help=f"use a number of ranks that divides {size}, or keep `{axis}` whole, or pad it in the adapter"
            + (f"; only {' '.join(sorted(SHARED))} (key heads of attention) may be replicated" if size < ranks else ""),
        )
    return rank * size // ranks, (rank + 1) * size // ranks


def clip(region: Region, ranges: Ranges) -> Region:
    """Restricts elementary axes to ranges, in products and in each part of a sum."""
    factors = tuple(factor for axis in region.axes for factor in axis.factors(set()))
    flat = replace(region, axes=factors)
    for k, factor in enumerate(factors):
        if factor.sum and any(_factors(part) & ranges.keys() for part in factor.parts):
            starts = [sum(part.size for part in factor.parts[:i]) for i in range(len(factor.parts))]
            windows = [flat.window(k, at, at + p.size) for at, p in zip(starts, factor.parts, strict=True)]
            parts = [_clip_at(window, k, ranges) for window in windows]
            flat = concat(parts, k, factor.name)
        elif factor.name in ranges:
            flat = flat.window(k, *ranges[factor.name])
    return replace(flat, axes=_regrouped(region.axes, flat.axes))


def _clip_at(region: Region, k: int, ranges: Ranges) -> Region:
    """Clips within one dimension, which remains one dimension."""
    inner = clip(replace(region, axes=(*(Axis("", a.size) for a in region.axes[:k]), *region.axes[k:])), ranges)
    return replace(inner, axes=(*region.axes[:k], *inner.axes[k:]))


def _regrouped(axes: Axes, factors: Axes) -> Axes:
    """The same tree of axes over factors of new sizes."""
    rest = iter(factors)

    def rebuild(axis: Axis) -> Axis:
        if not axis.parts or axis.sum:
            return next(rest)
        parts = tuple(rebuild(part) for part in axis.parts)
        return replace(axis, parts=parts, size=math.prod(part.size for part in parts))

    return tuple(rebuild(axis) for axis in axes)
