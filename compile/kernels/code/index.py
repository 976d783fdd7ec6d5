"""Symbolic indices of elements of a buffer: on each axis a variable of the code, times an integer, plus an integer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bringup.compile.schedule.graph.op_graph import Buffer, View, dense


@dataclass(frozen=True, slots=True)
class At:
    """An index on an axis: `symbol` · scale + offset. Without a symbol it is the offset."""

    symbol: str = ""
    scale: int = 1
    offset: int = 0

    def moved(self, scale: int, offset: int) -> At:
        """This index, multiplied by `scale` and moved by `offset`."""
        return At(self.symbol, self.scale * scale if self.symbol else 1, self.offset * scale + offset)

    @property
    def text(self) -> str:
        """The index as an expression, in parentheses if it is a sum or product."""
        if not self.symbol:
            return str(self.offset)
        product = self.symbol if self.scale == 1 else f"{self.symbol} * {self.scale}"
        return f"({product} + {self.offset})" if self.offset else f"({product})" if self.scale != 1 else product


Index = tuple[At, ...]


def broadcast(view: View, index: Index) -> Index:
    """The index into a view that is broadcast to a result with at least as many axes; `index` is into the result."""
    return tuple(
        At() if size == 1 else at for size, at in zip(view.shape, index[len(index) - len(view.shape) :], strict=True)
    )


def through(view: View, index: Index, buffer: Buffer) -> Index | None:
    """The index into the buffer of a view's element at `index`, axis by axis.

    None if an axis of the view is not a slice of one axis of the buffer.
    """
    steps = dense(buffer.shape)
    starts: list[int] = []
    rest = view.offset
    for size, step in zip(buffer.shape, steps, strict=True):
        starts.append(min(rest // step, size - 1) if size > 1 else 0)
        rest -= starts[-1] * step
    found = [At("", 1, start) for start in starts]
    taken: set[int] = set()
    for at, size, stride in zip(index, view.shape, view.strides, strict=True):
        if size == 1 or stride == 0:
            continue
        axis = next((n for n, step in enumerate(steps) if buffer.shape[n] > 1 and stride % step == 0), None)
        if axis is None or axis in taken or starts[axis] + (size - 1) * (stride // steps[axis]) >= buffer.shape[axis]:
            return None
        taken.add(axis)
        found[axis] = at.moved(stride // steps[axis], starts[axis])
    return tuple(found) if rest == 0 else None


def linear(strides: tuple[int, ...], index: Index, offset: int = 0, *, wide: bool = False) -> tuple[str, int]:
    """The offset of an index in elements as text, and its constant part. `wide`: the code computes it in int64."""
    cast = ".to(tl.int64)" if wide else ""
    constant = offset + sum(at.offset * stride for at, stride in zip(index, strides, strict=True))
    terms = [
        f"{at.symbol}{cast}" if (factor := at.scale * stride) == 1 else f"{at.symbol}{cast} * {factor}"
        for at, stride in zip(index, strides, strict=True)
        if at.symbol and stride
    ]
    if not terms:
        return str(constant), constant
    return " + ".join([*terms, str(constant)] if constant else terms), constant


def count(shape: tuple[int, ...]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)
