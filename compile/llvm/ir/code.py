# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Emits the elements of a group's results from its nodes. Intermediate results are not stored.

Elements are computed in float32, float64 or int64, and rounded to the dtype of each node's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from bringup.compile.llvm.ir.dtypes import F32, F64, I64
from bringup.compile.llvm.ir.emitter import Emitter, Value, real
from bringup.compile.schedule.graph.op_graph import Argument, Buffer, Node, View, dense

Kind = Literal["double", "float", "int", "bool"]
Index = tuple[Value, ...]  # an i64 per axis
Formula = Callable[["Code", Node, Index], Value]


class Code:
    """`buffers` and `nodes` are those of the group. `places` has the address of each buffer outside of the group."""

    def __init__(
        self,
        e: Emitter,
        buffers: Mapping[str, Buffer],
        nodes: tuple[Node, ...],
        places: Mapping[str, Value],
        formulas: Mapping[str, Formula],
    ) -> None:
        self.e, self.b, self.buffers, self.places, self.formulas = e, e.b, buffers, places, formulas
        self._nodes = {name: node for node in nodes for name in node.outputs}
        self._known: dict[tuple[str, Index], Value] = {}

    def restart(self) -> None:
        """Clears the cached elements, because their values are not available in the next loop."""
        self._known.clear()

    def element(self, name: str, index: Index) -> Value:
        """The element of a buffer at an index: loaded, or computed by the node that writes the buffer."""
        key = (name, index)
        if key not in self._known:
            buffer, node = self.buffers[name], self._nodes.get(name)
            if node is None:
                value = self.load(buffer, dense(buffer.shape), index)
            else:
                value = self.e.rounded(self.formulas[node.short](self, node, index), buffer.dtype)
            self._known[key] = value
        return self._known[key]

    def at(self, view: View, index: Index) -> Value:
        """The element of a view at an index."""
        buffer = self.buffers[view.buffer]
        if view.buffer not in self._nodes:
            return self.load(buffer, view.strides, index, view.offset)
        return self.element(view.buffer, self._through(view, index, buffer))

    def argument(self, value: Argument, index: Index, kind: Kind) -> Value:
        """An argument of a node, converted to a kind: an element of a tensor, broadcast to the index, or a constant."""
        if isinstance(value, View):
            own = index[len(index) - len(value.shape) :]
            place = tuple(I64(0) if size == 1 else at for size, at in zip(value.shape, own, strict=True))
            return self.cast(self.at(value, place), kind_of(self.buffers[value.buffer].dtype), kind)
        assert isinstance(value, bool | int | float)
        match kind:
            case "double":
                return F64(float(value))
            case "float":
                return real(float(value))
            case "int":
                return I64(int(value))
            case "bool":
                return self.truth(bool(value))

    def truth(self, value: bool) -> Value:
        """A constant i1."""
        return self.b.icmp_signed("==", I64(int(value)), I64(1))

    def cast(self, value: Value, own: Kind, kind: Kind) -> Value:
        """Converts a value between kinds. Floats are truncated to integers and saturate; NaN becomes 0."""
        b, like = self.b, F64 if kind == "double" else F32
        match own, kind:
            case ("double", "float"):
                return b.fptrunc(value, F32)
            case ("float", "double"):
                return b.fpext(value, F64)
            case (("float" | "double"), "int"):  # saturating; 0 for NaN: fptosi is undefined there
                suffix = "f64" if own == "double" else "f32"
                return self.e.intrinsic(f"llvm.fptosi.sat.i64.{suffix}", I64, [value])
            case (("float" | "double"), "bool"):
                return b.fcmp_unordered("!=", value, real(0.0, value))
            case ("int", ("float" | "double")):
                return b.sitofp(value, like)
            case ("int", "bool"):
                return b.icmp_signed("!=", value, I64(0))
            case ("bool", ("float" | "double")):
                return b.uitofp(value, like)
            case ("bool", "int"):
                return b.zext(value, I64)
            case _:
                return value

    def load(self, buffer: Buffer, strides: tuple[int, ...], index: Index, offset: int = 0) -> Value:
        """Loads an element of a buffer in memory; strides and offset are in elements."""
        return self.e.load(self.places[buffer.name], buffer.dtype, self.number(strides, index, offset))

    def number(self, strides: tuple[int, ...], index: Index, offset: int = 0) -> Value:
        """The offset, in elements, of an index."""
        found = I64(offset)
        for at, stride in zip(index, strides, strict=True):
            if stride:
                found = self.b.add(found, self.b.mul(at, I64(stride)))
        return found

    def unflat(self, number: Value, shape: tuple[int, ...]) -> Index:
        """The index, in a dense tensor of a shape, of the element with a linear offset."""
        found: list[Value] = []
        for size, step in zip(shape, dense(shape), strict=True):
            found.append(self.b.urem(self.b.udiv(number, I64(step)), I64(size)) if size > 1 else I64(0))
        return tuple(found)

    def _through(self, view: View, index: Index, buffer: Buffer) -> Index:
        """The index in a buffer of a view's element: axis by axis if the strides allow that, else from the offset."""
        steps, rest = dense(buffer.shape), view.offset
        found: list[Value] = []
        starts: list[int] = []
        for size, step in zip(buffer.shape, steps, strict=True):
            starts.append(min(rest // step, size - 1) if size > 1 else 0)
            rest -= starts[-1] * step
            found.append(I64(starts[-1]))
        taken: set[int] = set()
        for at, size, stride in zip(index, view.shape, view.strides, strict=True):
            if size == 1 or stride == 0:
                continue
            axis = next((n for n, step in enumerate(steps) if buffer.shape[n] > 1 and stride % step == 0), None)
            far = axis is None or starts[axis] + (size - 1) * (stride // steps[axis]) >= buffer.shape[axis]
            if axis is None or far or axis in taken or rest:
                return self.unflat(self.number(view.strides, index, view.offset), buffer.shape)
            taken.add(axis)
            found[axis] = self.b.add(self.b.mul(at, I64(stride // steps[axis])), I64(starts[axis]))
        return tuple(found)


def kind_of(dtype: str) -> Kind:
    """The kind in which elements of a dtype are computed."""
    if dtype == "bool":
        return "bool"
    return "double" if dtype == "float64" else "float" if "float" in dtype else "int"


def is_real(kind: Kind) -> bool:
    """Whether a kind is floating-point."""
    return kind in ("float", "double")
