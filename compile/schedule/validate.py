"""Validates a schedule from a file before it runs, because a bundle may be malicious."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from bringup.compile.program.program import Interface
from bringup.compile.schedule.graph.op_graph import Kind, OpGraph, View
from bringup.compile.schedule.graph.roles import WRITES
from bringup.compile.schedule.liveness import GIVEN
from bringup.compile.schedule.memory import ALIGNMENT
from bringup.compile.schedule.schedule import EntrySchedule, Schedule, ScheduledCall
from bringup.graphs.core.step import FIELDS
from bringup.spec import DTYPES, Shape

NAMESPACES = ("aten", "bringup")
KINDS = frozenset(get_args(Kind))


def validate(schedule: Schedule, interface: Interface) -> None:
    """Raises ValueError for a view outside its buffer, an offset outside the arena, and unknown names."""
    for problem in _problems(schedule, interface):
        raise ValueError(problem)


def _problems(schedule: Schedule, interface: Interface) -> Iterator[str]:
    for graph in schedule.graphs.values():
        yield from _of_graph(graph)
    shapes = {spec.name: spec.shape for spec in (*interface.weights, *interface.states)}
    if set(schedule.entries) != {entry.name for entry in interface.entries}:
        yield "it has other entry points than the program"
    for entry in interface.entries:
        scheduled = schedule.entries[entry.name]
        if scheduled.outputs.keys() != entry.outputs.keys():
            yield f"`{entry.name}` has the outputs {sorted(scheduled.outputs)}"
        yield from _of_entry(schedule, scheduled)
        for call in scheduled.calls:
            yield from _of_call(schedule.graphs[call.function], call, shapes)


def _of_call(graph: OpGraph, call: ScheduledCall, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Problems of the buffers that a call binds by name."""
    for buffer in graph.buffers.values():
        bound = buffer.kind in ("weight", "state")
        if bound and shapes.get(call.full_name(buffer.name)) != buffer.shape:
            yield f"`{graph.name}` binds `{call.full_name(buffer.name)}` as {list(buffer.shape)}"
        if buffer.kind == "step" and buffer.name.removeprefix("step:") not in FIELDS:
            yield f"`{graph.name}` reads `{buffer.name}`"
        if buffer.kind == "value" and buffer.name not in call.values:
            yield f"`{graph.name}` is called without `{buffer.name}`"


def _of_graph(graph: OpGraph) -> Iterator[str]:
    for buffer in graph.buffers.values():
        if (
            buffer.kind not in KINDS
            or buffer.dtype not in DTYPES
            or any(type(size) is not int or size < 0 for size in buffer.shape)
        ):
            yield f"`{graph.name}` has a buffer `{buffer.name}` of {buffer.dtype}{list(buffer.shape)}"
            return
    for node in graph.nodes():
        if node.op.split(".")[0] not in NAMESPACES or node.op.count(".") != 2:
            yield f"`{graph.name}` has an operator `{node.op}`"
        if not {*node.outputs, *node.updates} <= graph.buffers.keys():
            yield f"`{graph.name}` writes buffers that it does not have"
        elif any(graph.buffers[name].kind != "state" for name in node.updates):
            yield f"`{graph.name}` changes a buffer that is not a state"
        if node.op in WRITES and node.updates != tuple(view.buffer for view in node.views[:1]):
            yield f"`{graph.name}` changes other buffers than it states"
        for view in node.views:
            yield from _of_view(graph, view)
    for view in graph.results:
        yield from _of_view(graph, view)


def _of_view(graph: OpGraph, view: View) -> Iterator[str]:
    buffer = graph.buffers.get(view.buffer)
    numbers = (*view.shape, *view.strides, view.offset)
    if buffer is None or any(type(number) is not int or number < 0 for number in numbers):
        yield f"`{graph.name}` reads `{view.buffer}` at {numbers}"
        return
    pairs = zip(view.shape, view.strides, strict=True)
    last = view.offset + sum(max(size - 1, 0) * stride for size, stride in pairs)
    if DTYPES[buffer.dtype].nbytes((last + 1,)) > buffer.nbytes and 0 not in view.shape:
        yield f"`{graph.name}` reads `{view.buffer}` beyond its end"


def _of_entry(schedule: Schedule, entry: EntrySchedule) -> Iterator[str]:
    needed = 0
    for number, call in enumerate(entry.calls):
        graph = schedule.graphs.get(call.function)
        if graph is None:
            yield f"`{entry.name}` calls `{call.function}`, which does not exist"
            return
        for name in graph.planned:
            offset, nbytes = call.places.get(name, -1), graph.buffers[name].nbytes
            needed += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
            if type(offset) is not int or offset < 0 or offset % ALIGNMENT or offset + nbytes > entry.nbytes:
                yield f"`{entry.name}` has `{name}` at {offset} of {entry.nbytes} bytes"
        for name, (owner, buffer) in call.values.items():
            known = owner == GIVEN or (0 <= owner < number and buffer in entry.calls[owner].places)
            if name not in graph.buffers or not known:
                yield f"`{entry.name}` reads `{name}` of call {owner}"
    if type(entry.nbytes) is not int or not 0 <= entry.nbytes <= needed:
        yield f"`{entry.name}` has an arena of {entry.nbytes} bytes for {needed}"
    for name, (owner, buffer) in entry.outputs.items():
        if not 0 <= owner < len(entry.calls) or buffer not in entry.calls[owner].places:
            yield f"`{entry.name}` returns `{name}` of call {owner}"
