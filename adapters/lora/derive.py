"""ΔW = B · A through the rule of the base: movement of rows applies to B, movement of columns to A."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bringup.adapters.algebra.copy_nest import Nest, project, row_major
from bringup.adapters.algebra.region import Region
from bringup.adapters.lora.base import Base
from bringup.adapters.lora.blocks import Block, Mixed, Places, Side, blocks
from bringup.adapters.lora.factors import RANK, Lora, LowRank, Pair
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import Diagnostic
from bringup.graphs.core.axes import Axes, Axis, shape_of, sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import TensorInfo

MAGNITUDE = "lora_magnitude"


@dataclass(slots=True)
class Group:
    """Blocks of one parameter that share two arrays: experts whose rank and scale are equal, or a single matrix."""

    rank: int
    scale: float
    blocks: list[tuple[Block, Pair]] = field(default_factory=list[tuple[Block, Pair]])
    places: set[Places] = field(default_factory=set[Places])

    def matches(self, block: Block, pair: Pair) -> bool:
        """Whether a block is of another expert; matrices that are summed have separate arrays."""
        if (pair.rank, pair.scale) != (self.rank, self.scale) or not block.place or block.place in self.places:
            return False
        first = self.blocks[0][0]
        same_magnitude = (pair.magnitude is None) is (self.blocks[0][1].magnitude is None)
        return same_magnitude and (first.given.axes, first.summed.axes) == (block.given.axes, block.summed.axes)


def derive(base: Base, pairs: Iterable[Pair]) -> tuple[Lora, list[Diagnostic]]:
    """The factors of a graph's parameters, and findings on pairs: those pairs are omitted.

    Arrays are float32. Findings are BU165 (a shape that does not match the base) and BU167 (movement without low-rank
    factors).
    """
    groups: dict[str, list[Group]] = {}
    findings: list[Diagnostic] = []
    entries: dict[str, Entry] = {}
    known: dict[tuple[int, int, bool], tuple[Block, ...] | Mixed] = {}  # identical layers are analysed once
    rules: dict[str, Entry] = {}
    for pair in pairs:
        if pair.target not in base.uses:
            findings.append(_unread(pair))
        for entry, source in base.uses.get(pair.target, ()):
            key = id(entry.region), source, pair.embedding
            if key not in known:
                known[key] = _split(entry, source, first=pair.embedding)
            found = known[key]
            if not isinstance(found, Mixed) and pair.magnitude and not _has_whole_rows(entry, found):
                found = Mixed("and DoRA needs the norm of complete rows")
            if wrong := _refused(pair, entry, found) if isinstance(found, Mixed) else _misfits(pair, found[0]):
                findings += wrong
                break
            assert not isinstance(found, Mixed)
            name = entry.declared.name
            rules[name] = entry
            for block in found:
                _add(groups.setdefault(name, []), block, pair)
    sites = {name: tuple(_factors(rules[name], groups[name], entries)) for name in base.parameters if name in groups}
    signature = Signature({name: entry.declared for name, entry in entries.items()})
    headers = {info.name: info for entry in entries.values() for info in entry.tensors}
    return Lora(plan=Plan(signature, headers, entries), sites=sites), findings


def sides(base: Base, target: str) -> tuple[int, int]:
    """The input and output sizes of a tensor of the base: `in` and `out` of its factors. Raises Mixed."""
    entry, source = base.uses[target][0]
    first = blocks(entry, source, first=False)[0]
    return first.summed.size, first.given.size


def _split(entry: Entry, source: int, *, first: bool) -> tuple[Block, ...] | Mixed:
    try:
        return blocks(entry, source, first=first)
    except Mixed as fault:
        return fault


def _has_whole_rows(entry: Entry, found: Sequence[Block]) -> bool:
    """Whether each row of the parameter is a complete row of the tensor."""
    sizes = entry.region.shape
    return all(
        block.summed.size
        == math.prod(sizes[k] for k in block.summed.axes)
        == sum(math.prod(extent for extent, *_ in line.loops) for line in block.summed.lines)
        for block in found
    )


def _add(groups: list[Group], block: Block, pair: Pair) -> None:
    group = next((group for group in reversed(groups) if group.matches(block, pair)), None)
    if group is None:
        group = Group(pair.rank, pair.scale)
        groups.append(group)
    group.blocks.append((block, pair))
    group.places.add(block.place)


def _refused(pair: Pair, entry: Entry, fault: Mixed) -> list[Diagnostic]:
    """BU167 for movement without low-rank factors."""
    return [
        Diagnostic(
            code="BU167",
            message=f"the LoRA `{pair.module}` of `{pair.target}` has no low-rank form in `{entry.declared.name}`: "
            f"the base's rule does not only move complete rows and columns, {fault}",
            help="merge the adapter into the base model with peft, and use that as the checkpoint",
            parameter=entry.declared.name,
            sources=tuple(info.name for info in pair.tensors),
            where=entry.rule.site,
            declared=entry.declared.site,
        )
    ]


def _unread(pair: Pair) -> Diagnostic:
    """BU167 for a tensor that rules do not read, or if errors of the rules prevent planning the base."""
    return Diagnostic(
        code="BU167",
        message=f"no parameter is read from `{pair.target}`, which `{pair.module}` changes",
        help="check that the base itself fits: `bringup check`",
        sources=(pair.a.name, pair.b.name),
    )


def _misfits(pair: Pair, block: Block) -> list[Diagnostic]:
    """BU165 for factors whose sizes do not match the base."""
    wanted = {pair.a: shape_of(_axes(pair, block, "summed")), pair.b: shape_of(_axes(pair, block, "given"))}
    if pair.magnitude:
        wanted[pair.magnitude] = (block.given.size,)
    return [
        Diagnostic(
            code="BU165",
            message=f"`{info.name}` has shape {list(info.shape)}; for `{pair.target}` of this base it is {list(shape)}",
            help="the adapter was trained on a model of other sizes: use that model as the base",
            expected=str(list(shape)),
            actual=str(list(info.shape)),
            sources=(info.name,),
            file=str(info.file or ""),
            tensor=info.name,
        )
        for info, shape in wanted.items()
        if info.shape != shape
    ]


def _axes(pair: Pair, block: Block, side: str) -> Axes:
    """The axes of a pair's tensor."""
    text = {"summed": pair.layout.a, "given": pair.layout.b, MAGNITUDE: "out"}[side]
    return sized(text, {"in": block.summed.size, "out": block.given.size, "rank": pair.rank, "e": block.slabs})


def _factors(base: Entry, groups: Sequence[Group], entries: dict[str, Entry]) -> Iterable[LowRank]:
    """A parameter's factors; their arrays are added to `entries`."""
    name = base.declared.name
    for number, group in enumerate(groups):
        names = [f"{name}.lora_{x}" + (f".{number}" if number else "") for x in "AB"]
        for array, side in zip(names, ("summed", "given"), strict=True):
            entries[array] = _entry(base, array, group, side)
        block, pair = group.blocks[0]
        magnitude = f"{name}.{MAGNITUDE}" + (f".{number}" if number else "") if pair.magnitude else ""
        if magnitude:
            entries[magnitude] = _entry(base, magnitude, group, MAGNITUDE)
        yield LowRank(
            parameter=name,
            a=names[0],
            b=names[1],
            rank=group.rank,
            scale=group.scale,
            placed=tuple(k for k, _ in block.place),
            given=block.given.axes,
            summed=block.summed.axes,
            magnitude=magnitude,
        )


def _entry(base: Entry, name: str, group: Group, side: str) -> Entry:
    """The array of one side: `rank` is the first axis of a, and the last of b; magnitudes do not have it."""
    declared = base.declared.axes
    block, pair = group.blocks[0]
    own, placed = _side(block, side), tuple(k for k, _ in block.place)
    order = {"summed": (-1, *own.axes), "given": (*own.axes, -1), MAGNITUDE: own.axes}[side]
    axes: Axes = tuple(Axis(RANK, group.rank) if k < 0 else declared[k] for k in (*placed, *order))
    strides = row_major(shape_of(axes))
    at = dict(zip((*placed, *order), strides, strict=True))
    nests: list[Nest] = []
    infos: list[TensorInfo] = []
    for block, pair in group.blocks:
        info = _info(pair, side)
        start = sum(position * at[k] for k, position in block.place)
        nests += _nests(block, pair, side, len(infos), start, at)
        infos.append(info)
    region = Region(axes, infos[0].dtype, project(nests, shape_of(axes), strides))
    array = Declared(name, axes, "float32", site=base.declared.site)
    return Entry(array, base.rule, tuple(infos), region)


def _nests(block: Block, pair: Pair, side: str, source: int, start: int, at: Mapping[int, int]) -> Iterable[Nest]:
    """The nests from a pair's tensor to an array from `start` on, whose axes have the strides `at`; -1 is the rank."""
    factors = tuple(factor for axis in _axes(pair, block, side) for factor in axis.factors(set()))
    sizes = [factor.size for factor in factors]
    strides = dict(zip((factor.name for factor in factors), row_major(sizes), strict=True))
    step = strides["in" if side == "summed" else "out"]
    info = _info(pair, side)
    for line in _side(block, side).lines:
        loops = [(extent, src * step, dst * at[k]) for extent, src, k, dst in line.loops]
        src = block.slab * strides.get("e", 0) + line.src * step
        dst = start + sum(position * at[k] for k, position in line.dst)
        ranks = () if side == MAGNITUDE else ((pair.rank, strides["rank"], at[-1]),)
        yield Nest(source, info.dtype, src, (*loops, *ranks), dst)


def _side(block: Block, side: str) -> Side:
    """Magnitudes are moved as rows are."""
    return block.summed if side == "summed" else block.given


def _info(pair: Pair, side: str) -> TensorInfo:
    found = {"summed": pair.a, "given": pair.b, MAGNITUDE: pair.magnitude}[side]
    assert found is not None, "only pairs of DoRA have magnitudes"
    return found
