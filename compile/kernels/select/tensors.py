"""Tensor arguments of kernels: views of a function's buffers, or memory of `scratch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bringup.compile.kernels.call import SCRATCH, Constant, KernelCall, Operand, Pointer
from bringup.compile.kernels.code.types import POINTERS, kernel, pointer, size_of
from bringup.compile.schedule.graph.op_graph import Node, OpGraph, View, dense, whole
from bringup.spec import Shape

# The buffer `scratch`: counters, which are zero between launches, then uninitialised memory.
COUNTERS = 1 << 16  # bytes
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument. Strides are in elements. `kind` is that of the buffer (`op_graph.Buffer`), "" for scratch."""

    place: Pointer
    dtype: str
    shape: Shape
    strides: tuple[int, ...]
    kind: str = ""

    @property
    def parameter(self) -> tuple[str, Operand]:
        """The type of the parameter and its argument, the address."""
        return POINTERS[self.dtype], self.place

    @property
    def is_dense(self) -> bool:
        """Whether the elements are contiguous and in order."""
        return self.strides == dense(self.shape)

    def columns(self, begin: int, end: int) -> Tensor:
        """Elements `begin` to `end` of the last axis."""
        offset = begin * self.strides[-1] * size_of(self.dtype)
        place = Pointer(self.place.buffer, self.place.offset + offset)
        return replace(self, place=place, shape=(*self.shape[:-1], end - begin))


Parameter = Tensor | float | None


def tensor_of(graph: OpGraph, view: View) -> Tensor:
    """A view of a buffer as a tensor."""
    buffer = graph.buffers[view.buffer]
    return Tensor(pointer(buffer, view.offset), buffer.dtype, view.shape, view.strides, buffer.kind)


def argument_of(graph: OpGraph, node: Node, name: str) -> Tensor | None:
    """The tensor argument `name` of a node; None if it has none."""
    view = node.argument(name)
    return tensor_of(graph, view) if isinstance(view, View) else None


def result_of(graph: OpGraph, node: Node) -> Tensor:
    """The only result of a node."""
    (name,) = node.outputs
    return tensor_of(graph, whole(graph.buffers[name]))


def dense_tensor(place: Pointer, dtype: str, shape: Shape) -> Tensor:
    """A tensor of contiguous memory."""
    return Tensor(place, dtype, shape, dense(shape))


def call_of(
    stem: str,
    parameters: Mapping[str, Parameter],
    constants: Mapping[str, Constant],
    grid: tuple[int, int, int],
    *,
    warps: int,
    stages: int,
    scratch: int = 0,
) -> KernelCall:
    """A call of the kernel `stem`. `parameters` are in the order of its signature.

    Numbers are passed as float32. A parameter that is None becomes a constant of the kernel.
    """
    absent: dict[str, Constant] = {name: None for name, value in parameters.items() if value is None}
    present: list[tuple[str, Operand]] = [
        value.parameter if isinstance(value, Tensor) else ("fp32", float(value))
        for value in parameters.values()
        if value is not None
    ]
    found, arguments = kernel(stem, present, dict(constants) | absent, num_warps=warps, num_stages=stages)
    return KernelCall(kernel=found, grid=grid, arguments=arguments, scratch=scratch)


def counters(nbytes: int) -> Pointer | None:
    """The address of a kernel's counters; None if it needs more than `COUNTERS` bytes."""
    return Pointer(SCRATCH) if nbytes <= COUNTERS else None


def workspace(sizes: Sequence[int], begin: int = COUNTERS) -> tuple[list[Pointer], int]:
    """Addresses of areas of `sizes` bytes after `begin`, and the bytes of scratch up to their end."""
    pointers: list[Pointer] = []
    end = begin
    for nbytes in sizes:
        pointers.append(Pointer(SCRATCH, end))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return pointers, end
