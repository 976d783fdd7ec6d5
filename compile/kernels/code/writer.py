"""Generates Triton code for the elements of a group's results from its nodes.

An expression is written for one index, whose variables are tiles. It contains the expressions of the nodes that it
reads, so intermediate results are not stored. Floats are computed in float32, and rounded to the dtype of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.kernels.code.index import At, Index, broadcast, count, linear, through
from bringup.compile.kernels.code.types import POINTERS, TYPES, is_float, pointer
from bringup.compile.schedule.graph.op_graph import Argument, Buffer, Group, Node, OpGraph, View, dense

POINTER_LIMIT = 20  # pointer parameters of the kernels with generated code: p0, p1, …
WIDE = 2**31  # offsets into a buffer with at least this many elements are int64


class NotTaken(Exception):
    """The group cannot be expressed as code of this kind; another selector may support it."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tile: its variable, and its kind: `float` (float32), `int` (int64) or `bool`."""

    text: str
    kind: str


Formula = Callable[["Code", Node, str, Index], Value]
Base = Callable[[Index], "Value | None"]


class Code:
    """The lines of a device function over tiles, and the buffers that are its parameters p0, p1, ….

    `formulas`: the expression of each operation, by its short name. `masks`: by variable, the mask of loads whose index
    contains it; the last of these in the order of `masks` applies. `lanes`: by length, the variable that covers a
    complete last axis. `bases`: buffers that are already computed, by name. `native_fp8`: whether the architecture has
    instructions that convert to float8. `scratch`: bytes of the buffer `scratch` that the lines use.
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
        self.scratch = 0
        self.nodes = {name: node for node in group.nodes for name in node.outputs}
        self._pointers: dict[str, str] = {}
        self._known: dict[tuple[str, Index], Value] = {}

    def restart(self, masks: Mapping[str, str]) -> None:
        """Discards all computed values and replaces the masks, for code with other variables."""
        self.masks = dict(masks)
        self._known.clear()

    @contextmanager
    def only_where(self, condition: str) -> Generator[None]:
        """Lines that a program skips if a scalar is false. Values that they compute cannot be used after them."""
        masks, known = dict(self.masks), dict(self._known)
        self.lines.append(f"if {condition}:")
        begin = len(self.lines)
        yield
        self.lines[begin:] = [f"    {line}" for line in self.lines[begin:]]
        self.masks, self._known = masks, known

    def know(self, name: str, index: Index, value: Value) -> None:
        """Records the element at an index of a buffer, for a node that computes several results."""
        self._known[name, index] = value

    # --- indices

    def mask(self, index: Index) -> str | None:
        """The mask of loads at an index; None if the index has no variable."""
        used = {at.symbol for at in index if at.symbol}
        return next((self.masks[name] for name in reversed(self.masks) if name in used), None)

    def variable(self, text: str, like: Index) -> str:
        """Adds a line that defines a new variable, with the mask of `like`. Returns its name."""
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
        """The index into a contiguous shape of the element with the flat index `at`."""
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
        """The parameter of a buffer. Raises NotTaken if there are too many, or for a dtype that Triton lacks."""
        if buffer.name not in self._pointers:
            if len(self.parameters) == POINTER_LIMIT or buffer.dtype not in POINTERS:
                raise NotTaken
            self._pointers[buffer.name] = f"p{len(self.parameters)}"
            self.parameters.append((POINTERS[buffer.dtype], pointer(buffer)))
        return self._pointers[buffer.name]

    def counters(self, place: Pointer, nbytes: int) -> str:
        """The parameter of int64 counters in the buffer `scratch`. Raises NotTaken if there are too many parameters."""
        if len(self.parameters) == POINTER_LIMIT:
            raise NotTaken
        self.parameters.append((POINTERS["int64"], place))
        self.scratch = max(self.scratch, place.offset + nbytes)
        return f"p{len(self.parameters) - 1}"

    def address(self, buffer: Buffer, strides: tuple[int, ...], index: Index, offset: int = 0) -> str:
        """The address of an element, as an expression. `strides` and `offset` are in elements."""
        text, _ = linear(strides, index, offset, wide=count(buffer.shape) >= WIDE)
        return f"{self.pointer(buffer)} + {text}"

    def load(self, buffer: Buffer, strides: tuple[int, ...], index: Index, offset: int = 0) -> Value:
        """Adds a line that loads an element, masked, and converts it to its kind."""
        kind = kind_of(buffer.dtype)
        index = tuple(at if stride else At() for at, stride in zip(index, strides, strict=True))
        mask = self.mask(index)
        masked = f", mask={mask}, other={_ZERO[kind]}" if mask else ""
        wide = {"float": ".to(tl.float32)", "int": ".to(tl.int64)", "bool": ".to(tl.int1)"}[kind]
        other = masked.replace("other=False", "other=0")
        text = f"tl.load({self.address(buffer, strides, index, offset)}{other}){wide}"
        return Value(self.variable(text, index), kind)

    def store(self, buffer: Buffer, index: Index, value: Value, mask: str | None = None) -> None:
        """Adds a line that stores a value in the buffer's dtype."""
        mask = mask or self.mask(index)
        place = self.address(buffer, dense(buffer.shape), index)
        if not any(at.symbol for at in index):  # a single element, which one lane stores
            place = f"{place} + {next(iter(self.masks))}"
        masked = f", mask={mask}" if mask else ""
        self.lines.append(f"tl.store({place}, {value.text}.to({TYPES[buffer.dtype]}){masked})")

    # --- expressions

    def element(self, name: str, index: Index) -> Value:
        """The element at an index of a buffer."""
        key = (name, index)
        if key not in self._known:
            self._known[key] = self._element(name, index)
        return self._known[key]

    def at(self, view: View, index: Index) -> Value:
        """The element at an index of a view."""
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
        """A tensor or scalar argument of an element-wise node, as an expression of a kind."""
        if isinstance(value, View):
            return self.cast(self.at(value, broadcast(value, index)), kind)
        if isinstance(value, bool):
            return str(value) if kind == "bool" else _number(float(value), kind)
        if isinstance(value, int | float):
            return _number(value, kind)
        raise NotTaken

    def cast(self, value: Value, kind: str) -> str:
        """The value converted to another kind, as an expression."""
        if value.kind == kind:
            return value.text
        if kind == "bool":
            return f"({value.text} != 0)"
        return f"{value.text}.to({_WIDEST[kind]})"

    def given(self, text: str, buffer: Buffer, index: Index) -> Value:
        """A result of a node, rounded to its dtype; integers are truncated to its bits."""
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
    """The kind in which a dtype is computed. Raises NotTaken for float64, because float32 has less precision."""
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
