"""OpGraph: one function of a program as plain data. Nodes are operations; a group is the nodes of one launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from bringup.spec import DTYPES, Shape, Site

Kind = Literal["weight", "state", "value", "step", "temporary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Memory that a function reads or writes, dense and in row-major order.

    Weights and states are bound by name at each call. Values are arguments of a call, `step:<field>` fields of the
    step. Temporaries are results of nodes; those that only one group uses are not in the memory plan.
    """

    name: str
    shape: Shape
    dtype: str
    kind: Kind

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return DTYPES[self.dtype].nbytes(self.shape)


@dataclass(frozen=True, slots=True)
class View:
    """A strided part of a buffer; strides and offset count elements. A stride of 0 repeats an element."""

    buffer: str
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        """The number of distinct elements of the buffer that it has."""
        return math.prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride)


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype as an argument of an operation."""

    name: str


Argument = View | DType | bool | int | float | str | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation. `op` is its torch operator (`bringup.linear.default`); `arguments` are those of its schema, with
    the schema's `names`. It writes the complete buffers `outputs`, and changes `updates` in place. `site` is the line
    of the model's source that created it, if known; it is not stored in files.
    """

    op: str
    names: tuple[str, ...]
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    updates: tuple[str, ...] = ()
    site: Site | None = field(default=None, compare=False, repr=False)

    @property
    def short(self) -> str:
        """`linear` of `bringup.linear.default`, `add` of `aten.add.Tensor`."""
        return self.op.split(".")[1]

    def argument(self, name: str) -> Argument:
        """The argument of a name; None if the operation does not have it."""
        return next((value for key, value in zip(self.names, self.arguments, strict=True) if key == name), None)

    @property
    def views(self) -> list[View]:
        """The tensors among the arguments."""
        return list(tensors_in(self.arguments))

    @property
    def reads(self) -> set[str]:
        """The buffers of its tensors."""
        return {view.buffer for view in self.views}


@dataclass(frozen=True)
class Group:
    """The nodes of one launch, in order."""

    nodes: tuple[Node, ...]

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The buffers that its nodes compute."""
        return frozenset(name for node in self.nodes for name in node.outputs)

    @cached_property
    def updates(self) -> frozenset[str]:
        """The states that its nodes change in place."""
        return frozenset(name for node in self.nodes for name in node.updates)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The buffers that it reads and does not compute itself."""
        return frozenset(name for node in self.nodes for name in node.reads) - self.outputs

    @property
    def name(self) -> str:
        """`rms_norm+linear+add`; equal adjacent names once, with their number."""
        names = [node.short for node in self.nodes]
        runs: list[list[Any]] = []
        for name in names:
            if runs and runs[-1][0] == name:
                runs[-1][1] += 1
            else:
                runs.append([name, 1])
        return "+".join(name if count == 1 else f"{name}*{count}" for name, count in runs)


@dataclass(frozen=True)
class OpGraph:
    """One function. `groups` are in an order in which they can run; `results` are the results of a call."""

    name: str
    buffers: Mapping[str, Buffer]
    groups: tuple[Group, ...]
    results: tuple[View, ...]

    @cached_property
    def readers(self) -> Mapping[str, Sequence[int]]:
        """For each buffer, the indices of the groups that read it."""
        found: dict[str, list[int]] = {}
        for number, group in enumerate(self.groups):
            for name in group.inputs:
                found.setdefault(name, []).append(number)
        return found

    @cached_property
    def given(self) -> frozenset[str]:
        """The buffers that results are parts of."""
        return frozenset(view.buffer for view in self.results)

    @cached_property
    def planned(self) -> frozenset[str]:
        """The temporaries that need memory: those that other groups read, or that are results."""
        every = frozenset(name for group in self.groups for name in group.outputs)
        return frozenset(name for name in every if name in self.readers) | (every & self.given)

    def with_groups(self, groups: Sequence[Group]) -> OpGraph:
        """The same function with other groups."""
        return replace(self, groups=tuple(groups))

    def nodes(self) -> Iterator[Node]:
        """All nodes, in the order of the groups."""
        for group in self.groups:
            yield from group.nodes


def dense(shape: Shape) -> tuple[int, ...]:
    """The strides of a dense tensor in row-major order, in elements."""
    return tuple(math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def within_rows(view: View, buffer: Buffer) -> bool:
    """Whether row i of a view is part of row i of its buffer, with more than one element if rows have more."""
    if not buffer.shape:
        return True
    row = dense(buffer.shape)[0]
    same = bool(view.shape) and view.shape[0] == buffer.shape[0] and view.strides[0] == row and view.offset < row
    return same and (view.elements > view.shape[0] or row == 1)


def whole(buffer: Buffer) -> View:
    """All of a buffer."""
    return View(buffer.name, buffer.shape, dense(buffer.shape))


def tensors_in(value: Argument) -> Iterator[View]:
    """The tensors of an argument, in order."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)
