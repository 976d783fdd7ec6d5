"""Triton code for elements of a group's results, written from its nodes.

An expression is written for one index, whose variables are tiles, and uses what other nodes of the group give by the
same code at their places: nothing is stored in between. Numbers are computed in float32, and rounded as their nodes do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.index import At, Index, broadcast, count, linear, through
from bringup.compile.kernels.code.types import POINTERS, TYPES, is_float, pointer
from bringup.compile.schedule.graph.op_graph import Argument, Buffer, Group, Node, OpGraph, View, dense

POINTER_LIMIT = 20  # parameters of the kernels that take such code: p0, p1, …
WIDE = 2**31  # from so many elements on, offsets are int64


class NotTaken(Exception):
    """The group has something that code cannot be written for."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tile: its variable, and what it is of: `float` (float32), `int` (int64) or `bool`."""

    text: str
    kind: str


Formula = Callable[["Code", Node, str, Index], Value]
Base = Callable[[Index], "Value | None"]


class Code:
    """Lines of a device function over tiles, and the buffers that it takes as p0, p1, ….

    `formulas`: the expression of each operation, by its short name. `masks`: by variable, in order, the mask that loads
    at places of it have; the last that occurs counts. `lanes`: by length, the variable that goes along a last axis, all
    of it. `bases`: what is there already. `native_fp8`: whether instructions convert to float8.
    """

    def __init__(
        self,
        graph: OpGraph,
        group: Group,
        formulas: Mapping[str, Formula],
        masks: Mapping[str, str],
        lanes: Mapping[int, str] | None = None,
    ) -> None:
        self.graph, self.group, self.formulas = graph, group, formulas
        self.lines: list[str] = []
        self.parameters: list[tuple[str, Operand]] = []
        self.masks, self.lanes = dict(masks), dict(lanes or {})
        self.bases: dict[str, Base] = {}
        self.native_fp8 = False
        self.nodes = {name: node for node in group.nodes for name in node.outputs}
        self._pointers: dict[str, str] = {}
        self._known: dict[tuple[str, Index], Value] = {}

    def restart(self, masks: Mapping[str, str]) -> None:
        """Forgets what was computed: other variables follow."""
        self.masks = dict(masks)
        self._known.clear()

    @contextmanager
    def only_where(self, condition: str) -> Generator[None]:
        """Lines that a program skips where a scalar is false. What they compute is known to them alone."""
        masks, known = dict(self.masks), dict(self._known)
        self.lines.append(f"if {condition}:")
        begin = len(self.lines)
        yield
        self.lines[begin:] = [f"    {line}" for line in self.lines[begin:]]
        self.masks, self._known = masks, known

    def know(self, name: str, index: Index, value: Value) -> None:
        """What is at an index of a buffer, for a node that gives several."""
        self._known[name, index] = value

    # --- places

    def mask(self, index: Index) -> str | None:
        """The mask of loads at an index, None where it has no variable."""
        used = {at.symbol for at in index if at.symbol}
        return next((self.masks[name] for name in reversed(self.masks) if name in used), None)

    def variable(self, text: str, like: Index) -> str:
        """A new variable, masked as `like` is."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        mask = self.mask(like)
        if mask is not None:
            order = list(self.masks)
            after = max(order.index(at.symbol) for at in like if at.symbol in self.masks)
            items = list(self.masks.items())
            self.masks = dict([*items[: after + 1], (name, mask), *items[after + 1 :]])
        return name

    def unflat(self, at: At, shape: tuple[int, ...]) -> Index:
        """The index into a dense shape of element number `at`."""
        axes = [n for n, size in enumerate(shape) if size != 1]
        found = [At()] * len(shape)
        if len(axes) <= 1 or not at.symbol:
            rest = at.offset
            for axis in axes if not at.symbol else []:
                step = dense(shape)[axis]
                found[axis], rest = At("", 1, rest // step), rest % step
            if at.symbol and axes:
                found[axes[0]] = at
            return tuple(found)
        steps = dense(shape)
        for axis in axes:
            text = f"({at.text}) // {steps[axis]}" if steps[axis] > 1 else at.text
            if axis != axes[0]:
                text = f"({text}) % {shape[axis]}"
            found[axis] = At(self.variable(text, (at,)))
        return tuple(found)

    # --- memory

    def pointer(self, buffer: Buffer) -> str:
        """The parameter of a buffer."""
        if buffer.name not in self._pointers:
            if len(self.parameters) == POINTER_LIMIT or buffer.dtype not in POINTERS:
                raise NotTaken
            self._pointers[buffer.name] = f"p{len(self.parameters)}"
            self.parameters.append((POINTERS[buffer.dtype], pointer(buffer)))
        return self._pointers[buffer.name]

    def address(self, buffer: Buffer, strides: tuple[int, ...], index: Index, offset: int = 0) -> str:
        text, _ = linear(strides, index, offset, wide=count(buffer.shape) >= WIDE)
        return f"{self.pointer(buffer)} + {text}"

    def load(self, buffer: Buffer, strides: tuple[int, ...], index: Index, offset: int = 0) -> Value:
        kind = kind_of(buffer.dtype)
        index = tuple(at if stride else At() for at, stride in zip(index, strides, strict=True))
        mask = self.mask(index)
        masked = f", mask={mask}, other={_ZERO[kind]}" if mask else ""
        wide = {"float": ".to(tl.float32)", "int": ".to(tl.int64)", "bool": ".to(tl.int1)"}[kind]
        other = masked.replace("other=False", "other=0")
        text = f"tl.load({self.address(buffer, strides, index, offset)}{other}){wide}"
        return Value(self.variable(text, index), kind)

    def store(self, buffer: Buffer, index: Index, value: Value, mask: str | None = None) -> None:
        """Writes a value in the buffer's dtype."""
        mask = mask or self.mask(index)
        place = self.address(buffer, dense(buffer.shape), index)
        if not any(at.symbol for at in index):  # of one element: one lane has it
            place = f"{place} + {next(iter(self.masks))}"
        masked = f", mask={mask}" if mask else ""
        self.lines.append(f"tl.store({place}, {value.text}.to({TYPES[buffer.dtype]}){masked})")

    # --- expressions

    def element(self, name: str, index: Index) -> Value:
        """What is at an index of a buffer."""
        key = (name, index)
        if key not in self._known:
            self._known[key] = self._element(name, index)
        return self._known[key]

    def at(self, view: View, index: Index) -> Value:
        """What is at an index of a view."""
        buffer = self.graph.buffers[view.buffer]
        if view.buffer not in self.nodes and view.buffer not in self.bases:
            return self.load(buffer, view.strides, index, view.offset)
        place = through(view, index, buffer)
        if place is None:
            text, constant = linear(view.strides, index, view.offset, wide=count(buffer.shape) >= WIDE)
            number = At(self.variable(text, index)) if text != str(constant) else At("", 1, constant)
            place = self.unflat(number, buffer.shape)
        return self.element(view.buffer, place)

    def argument(self, value: Argument, index: Index, kind: str) -> str:
        """A tensor or a number among the arguments of an element-wise node, as text of a kind."""
        if isinstance(value, View):
            return self.cast(self.at(value, broadcast(value, index)), kind)
        if isinstance(value, bool):
            return str(value) if kind == "bool" else _number(float(value), kind)
        if isinstance(value, int | float):
            return _number(value, kind)
        raise NotTaken

    def cast(self, value: Value, kind: str) -> str:
        if value.kind == kind:
            return value.text
        if kind == "bool":
            return f"({value.text} != 0)"
        return f"{value.text}.to({_WIDEST[kind]})"

    def given(self, text: str, buffer: Buffer, index: Index) -> Value:
        """A result of a node, rounded to its dtype; whole numbers keep the bits that it has."""
        kind = kind_of(buffer.dtype)
        if kind != "bool" and buffer.dtype not in ("float32", "int64"):
            text = f"({text}).to({TYPES[buffer.dtype]}).to({_WIDEST[kind]})"
        return Value(self.variable(text, index), kind)

    def _element(self, name: str, index: Index) -> Value:
        if name in self.bases:
            value = self.bases[name](index)
            if value is None:
                raise NotTaken
            return value
        buffer = self.graph.buffers[name]
        node = self.nodes.get(name)
        if node is None:
            return self.load(buffer, dense(buffer.shape), index)
        formula = self.formulas.get(node.short)
        if formula is None:
            raise NotTaken
        return formula(self, node, name, index)


def kind_of(dtype: str) -> str:
    """What a dtype is computed as. Raises NotTaken for float64, which float32 has not the digits of."""
    if dtype == "float64":
        raise NotTaken
    return "bool" if dtype == "bool" else "float" if is_float(dtype) else "int"


_WIDEST = {"float": "tl.float32", "int": "tl.int64"}
_ZERO = {"float": "0.0", "int": "0", "bool": "False"}


def _number(value: float, kind: str) -> str:
    if kind == "int":
        return str(int(value))
    if value in (float("inf"), float("-inf")) or value != value:
        return f'float("{value}")'
    return repr(float(value))
