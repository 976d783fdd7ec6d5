"""Expressions over checkpoint tensors, the language of rules.

Movement nodes (S, mv, cat, stack, split, at, pad, bits) only define the position of each element. Value nodes
(values.py) compute. Expressions are plain data: building one reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

from bringup.adapters.algebra.computed import block_bytes, dequantised
from bringup.adapters.algebra.gguf_forms import with_form
from bringup.adapters.algebra.pattern import fill
from bringup.adapters.algebra.region import Region, concat, takes_bits
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, Axis, parse, shape_of, show, sized
from bringup.spec import DTYPES, Shape


class Expr:
    """Base of all nodes; the methods build new ones."""

    def region(self, scope: Scope) -> Region:
        """Evaluates to a region. Raises AxesError if axes or sizes do not fit."""
        raise NotImplementedError

    def inputs(self) -> tuple[Expr, ...]:
        """The operands."""
        return ()

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        """Every source tensor in the order in which `region` meets them, with its name."""
        for node in self.inputs():
            yield from node.leaves(bindings)

    def names(self, bindings: Mapping[str, str]) -> list[str]:
        """The names of all leaves."""
        return [name for _, name in self.leaves(bindings)]

    def mv(self, pattern: str, **sizes: int) -> Expr:
        """Rearranges as in einops: `x.mv("(h t d) m -> (t h d) m", h=12, t=3)`."""
        before, arrow, after = pattern.partition("->")
        if not arrow:
            raise AxesError(f"mv expects `before -> after`, not `{pattern}`")
        return Mv(self, parse(before.strip()), parse(after.strip()), sizes)

    def split(self, axis: str | int, *sizes: int) -> tuple[Expr, ...]:
        """Consecutive parts along one axis, which together cover it."""
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        return tuple(Part(self, axis, start, size, sum(sizes)) for start, size in zip(starts, sizes, strict=True))

    def at(self, axis: str | int, index: int) -> Expr:
        """One index of an axis, which is removed."""
        return At(self, axis, index)

    def pad(self, axis: str | int, before: int = 0, after: int = 0) -> Expr:
        """Zeros before and after, along one axis."""
        return Pad(self, axis, before, after)

    def bits(self, dtype: str, axis: str = "bit") -> Expr:
        """The same bits as another dtype; a narrower dtype adds a last axis, low bits first."""
        return Bits(self, dtype, axis)


class Unary(Expr):
    """A node with one input."""

    of: Expr

    def inputs(self) -> tuple[Expr, ...]:
        return (self.of,)


@dataclass(frozen=True)
class Source(Expr):
    """A checkpoint tensor; see `S`. `literal`: the name is the checkpoint's own; `checkpoint_names` do not apply."""

    name: str
    axes: str
    sizes: Mapping[str, int]
    dtype: str = ""
    literal: bool = False
    plain: bool = False

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        yield self, fill(self.name, bindings)

    def region(self, scope: Scope) -> Region:
        name = fill(self.name, scope.bindings)
        if planned := scope.names.planned(name, scope):
            return planned
        info = scope.names[name]
        shape = info.shape_in(len(self.stored(scope, None)))
        axes = self.stored(scope, shape)
        if axes and shape_of(axes) != shape:
            scope.misfits.append((info, axes))
        axes = axes or tuple(Axis("", size) for size in shape)
        if DTYPES[info.dtype].block:
            computed = dequantised(block_bytes(scope.add(info), info), axes, info.dtype)
            return scope.whole(with_form(computed, info.dtype, scope), axes)
        return scope.whole(info, axes)

    def has_shape(self, axes: Axes) -> bool:
        """Whether axes that `stored` returned without a shape determine one."""
        return bool(axes) and 0 not in shape_of(axes)

    def stored(self, scope: Scope, shape: Shape | None) -> Axes:
        """The axes with sizes from the declaration, or else from `shape`."""
        if not self.axes:
            return scope.defaults
        own = {name: scope.number(name, size) for name, size in self.sizes.items()}
        axes = sized(self.axes, {**scope.sizes, **own})
        if shape is not None and len(shape) == len(axes):
            axes = tuple(_solve(axis, size) for axis, size in zip(axes, shape, strict=True))
        return axes


def _solve(axis: Axis, size: int) -> Axis:
    """Computes the size of the one unknown part of a dimension from the others."""
    if axis.size:
        return axis
    unknown = [node.name for node in axis.walk() if not node.size and not node.parts]
    known = math.prod(node.size or 1 for node in axis.parts)
    if len(set(unknown)) > 1 or (axis.parts and size % known):
        raise AxesError(f"dimension {size} cannot be read as `{axis}`: give the sizes of {unknown}")
    return axis.sized({unknown[0]: size // known})


@dataclass(frozen=True)
class Mv(Unary):
    of: Expr
    before: Axes
    after: Axes
    sizes: Mapping[str, int]

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        own = {name: scope.number(name, size) for name, size in self.sizes.items()}
        before = tuple(axis.sized(own) for axis in self.before)
        if len(before) != len(region.shape):
            raise AxesError(f"`{show(before)}` names {len(before)} dimensions of {list(region.shape)}")
        known = {**scope.sizes, **own}
        if any(not axis.size for axis in before):
            before = tuple(axis.sized(known) if axis.parts else axis for axis in before)
        before = tuple(_solve(axis, size) for axis, size in zip(before, region.shape, strict=True))
        names = {node.name: node.size for axis in before for node in axis.walk()}
        return region.rearrange(before, tuple(axis.sized(names) for axis in self.after))


@dataclass(frozen=True)
class Part(Unary):
    of: Expr
    axis: str | int
    start: int
    size: int
    total: int

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        k = _position(region, self.axis)
        name = region.axes[k].name if isinstance(self.axis, int) else self.axis
        start, size, total = (scope.number(name, n) for n in (self.start, self.size, self.total))
        if total != region.shape[k]:
            raise AxesError(f"parts of `{region.axes[k]}` add up to {total}, the axis has size {region.shape[k]}")
        return region.window(k, start, start + size)


@dataclass(frozen=True)
class At(Unary):
    of: Expr
    axis: str | int
    index: int

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        k = _position(region, self.axis)
        if region.axes[k].name in scope.blocks:
            raise AxesError(f"one index of `{region.axes[k].name}` cuts a quantisation block")
        return region.window(k, self.index, self.index + 1).without(k)


@dataclass(frozen=True)
class Pad(Unary):
    of: Expr
    axis: str | int
    before: int
    after: int

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        k = _position(region, self.axis)
        number = partial(scope.number, region.axes[k].name)
        return region.padded(k, number(self.before), number(self.after))


@dataclass(frozen=True)
class Bits(Unary):
    of: Expr
    dtype: str
    axis: str

    def region(self, scope: Scope) -> Region:
        region = self.of.region(scope)
        scope.check_dtypes(region, takes_bits(self.dtype), f"bits as {self.dtype}")
        return region.bits(self.dtype, self.axis)


@dataclass(frozen=True)
class Cat(Expr):
    parts: tuple[Expr, ...]
    axis: str | int

    def inputs(self) -> tuple[Expr, ...]:
        return self.parts

    def region(self, scope: Scope) -> Region:
        regions = [part.region(scope) for part in self.parts]
        names = [axis.name for axis in regions[0].axes]
        if isinstance(self.axis, int):
            return concat(regions, self.axis, names[self.axis])
        return concat(regions, names.index(self.axis) if self.axis in names else 0, self.axis)


@dataclass(frozen=True)
class Stack(Unary):
    of: Expr
    over: str
    n: int
    axis: str

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        return zip(cycle(leaf for leaf, _ in self.of.leaves({**bindings, self.over: "0"})), self.names(bindings))

    def names(self, bindings: Mapping[str, str]) -> list[str]:
        mark = f"\0{self.over}\0"  # occurs in no name: a name is computed once, and then numbered
        first = [name.split(mark) for name in self.of.names({**bindings, self.over: mark})]
        return [number.join(parts) for number in map(str, range(self.n)) for parts in first]

    def region(self, scope: Scope) -> Region:
        one = Axis(self.axis, 1)
        parts = (self.of.region(scope.bound(self.over, str(index))) for index in range(self.n))
        regions = [Region((one, *part.axes), part.dtype, part.nests, part.word) for part in parts]
        stacked = concat(regions, 0, self.axis)
        return replace(stacked, axes=(Axis(self.axis, self.n), *stacked.axes[1:]))


@dataclass(frozen=True)
class Packed(Unary):
    """Payload and block scales moved by one expression; see `packed`."""

    of: Expr
    blocks: Mapping[str, Mapping[str, int]]

    def region(self, scope: Scope) -> Region:
        part = next((value for value in scope.bindings.values() if value in self.blocks), "")
        return self.of.region(replace(scope, blocks=self.blocks.get(part, {})))


def _position(region: Region, axis: str | int) -> int:
    """The position of a named axis; a dimension is also found by the name of its only factor."""
    if isinstance(axis, int):
        return axis
    for k, own in enumerate(region.axes):
        if own.name == axis or [factor.name for factor in own.factors(set())] == [axis]:
            return k
    raise AxesError(f"no axis `{axis}` in `{show(region.axes)}`")


def S(name: str, axes: str = "", *, dtype: str = "", plain: bool = False, **sizes: int) -> Expr:
    """A checkpoint tensor: its name, with the pattern's variables filled in, and the axes it is stored in.

    Axis sizes in the target's declaration need not be passed. Without axes, the adapter's default for such a parameter
    applies; a vector has only one axis. `dtype` is that of dummy weights, if the stored dtype is not the parameter's.
    `plain`: the tensor is never quantised, whatever the config of a quantised checkpoint states.
    """
    return Source(name, axes, sizes, dtype, plain=plain)


def cat(*parts: Expr, axis: str | int = 0) -> Expr:
    """Concatenates along the axis of that name, or else along the first axis, which then gets the name."""
    return Cat(parts, axis)


def stack(of: Expr, *, over: str, n: int, axis: str = "") -> Expr:
    """`of` for {over} = 0 … n-1, along a new first axis. A gap in the numbers is a missing tensor."""
    return Stack(of, over, n, axis or over.lower())


def packed(of: Expr, **blocks: Mapping[str, int]) -> Expr:
    """One expression for a payload and its block scales, so that both move together.

    The rule's pattern has a variable that distinguishes them: in `packed(x, weight_scale_inv={"x": 128, "m": 128})` the
    scale has one value per 128 along `x` and `m`. Sizes in the expression are those of the payload; a cut inside a
    block is an error.
    """
    return Packed(of, blocks)
