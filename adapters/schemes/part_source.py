"""One of the tensors that a matrix is stored in, as a source whose shape follows from the matrix's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bringup.adapters.algebra.expr import Source
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, Axis, parse
from bringup.graphs.core.form import count
from bringup.spec import Shape

NOWHERE = Source("", "", {})
_DIMENSION = re.compile(r"(out|in|all)(?:([/*])(\d+))?|(\d+)")


@dataclass(frozen=True)
class PartSource(Source):
    """`layout` is what `Stored.matrix` describes; `of` is the source of the matrix that this is a part of.

    A dimension `all` has every element of the matrix, row after row. Axes are named by their place, since a scheme's
    movements go by position.
    """

    of: Source = NOWHERE
    layout: str = ""

    def stored(self, scope: Scope, shape: Shape | None) -> Axes:
        """The axes by the matrix's declaration, else by `shape`; () where neither tells."""
        rows, columns, experts = matrix_sizes(self.of.stored(scope, None))
        sizes = {"out": rows, "in": columns, "all": rows * columns}
        axes = [Axis("experts", experts)] if experts else []
        for name, sign, number, fixed in dimensions(self.layout):
            size = sizes.get(name, 0)
            of = int(number or 1)
            axes.append(Axis(name or "n", int(fixed) if fixed else size * of if sign == "*" else count(size, of)))
        if shape is not None and len(shape) == len(axes):
            axes = [axis if axis.size else Axis(axis.name, n) for axis, n in zip(axes, shape, strict=True)]
        return tuple(axes)


def dimensions(layout: str) -> Iterator[tuple[str, str, str, str]]:
    """(name, sign, number, fixed size) of each dimension. Raises AxesError for what is none."""
    for word in layout.split():
        found = _DIMENSION.fullmatch(word)
        if found is None:
            raise AxesError(f"`{word}` is no dimension of a matrix: write out, in, all, in/128, in*2 or a number")
        name, sign, number, fixed = found.groups(default="")
        yield name, sign, number, fixed


def matrix_sizes(plain: Axes) -> tuple[int, int, int]:
    """Rows, columns and experts (0 for a plain matrix) of a tensor with these axes; 0 for a size that they do not say.

    A matrix is stored [rows, columns], unless its axes are called `in out`; those of experts [experts, columns, rows],
    as transformers has them.
    """
    sizes = [axis.size for axis in plain]
    if len(sizes) == 3:
        return sizes[2], sizes[1], sizes[0]
    if len(sizes) != 2:
        return 0, 0, 0
    return (sizes[1], sizes[0], 0) if transposed(plain) else (sizes[0], sizes[1], 0)


def transposed(plain: Axes) -> bool:
    """Whether a tensor with these axes has columns before rows."""
    return len(plain) == 3 or [axis.name for axis in plain] == [axis.name for axis in parse("in out")]
