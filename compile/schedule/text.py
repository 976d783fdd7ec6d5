"""Graphs and schedules as readable text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.compile.program.program import Entry, Interface
from bringup.compile.schedule.costs import Cost, cost_of, total
from bringup.compile.schedule.floors import Device
from bringup.compile.schedule.graph.op_graph import Argument, DType, Group, Node, OpGraph, View, whole
from bringup.compile.schedule.schedule import Launch, Schedule


def graph_text(graph: OpGraph) -> str:
    """One function: a paragraph for each group, a line for each node."""
    lines = [f"# {graph.name}: {len(graph.groups)} groups"]
    for group in graph.groups:
        lines += ["", f"group {group.name}", *(f"  {_node(graph, node)}" for node in group.nodes)]
    results = ", ".join(view.buffer for view in graph.results)
    return "\n".join([*lines, "", f"return {results}", ""])


def text_of(schedule: Schedule, interface: Interface, devices: Sequence[Device] = ()) -> str:
    """Every entry point: its launches with their bytes and operations, and its memory.

    Decode is counted with the number of keys of the longest sequence, prefill with that of its own tokens. Each device
    has a column: the least time of a launch's bytes, in microseconds.
    """
    lines = [f"# {device.name}: {device.gigabytes_per_second:,g} GB/s ({device.source})" for device in devices]
    lines += [""] if devices else []
    for entry in interface.entries:
        lines += _entry(schedule, entry, interface, devices)
    return "\n".join(lines)


def keys_of(entry: Entry, interface: Interface) -> int:
    """The number of keys of each sequence for which the costs of an entry point are counted."""
    longest = interface.max_blocks * interface.block_size
    return longest if entry.decode else min(longest, entry.num_tokens // entry.num_sequences)


def _entry(schedule: Schedule, entry: Entry, interface: Interface, devices: Sequence[Device]) -> Iterator[str]:
    keys, plan = keys_of(entry, interface), schedule.entries[entry.name]
    launches = list(schedule.launches(entry.name))
    costs = [cost_of(launch.graph, launch.group, keys) for launch in launches]
    of = "1 sequence" if entry.num_sequences == 1 else f"{entry.num_sequences} sequences"
    yield f"# {entry.name}: {entry.num_tokens} tokens of {of}, {keys:,} keys each"
    temporaries = f"{plan.nbytes:,} bytes of temporaries, at most {plan.peak:,} live"
    yield f"# {len(launches)} launches, read and written in bytes; {temporaries}"
    heads = "".join(f" {device.name + ' us':>10}" for device in devices)
    yield f"{'':>5} {'weights':>14} {'cache':>13} {'other':>12} {'written':>12} {'MFLOP':>12}{heads}  launch"
    for number, (launch, cost) in enumerate(zip(launches, costs, strict=True)):
        yield f"{number:>5} {_columns(cost, devices)}  {_title(launch)}"
    yield f"{'sum':>5} {_columns(total(costs), devices)}  {total(costs).nbytes:,} bytes"
    yield ""


def _columns(cost: Cost, devices: Sequence[Device]) -> str:
    floors = "".join(f" {device.microseconds(cost.nbytes):>10,.2f}" for device in devices)
    flops = f"{cost.flops / 1e6:>12,.3f}"
    return f"{cost.weights:>14,} {cost.cache:>13,} {cost.other:>12,} {cost.written:>12,} {flops}{floors}"


def _title(launch: Launch) -> str:
    where = launch.call.prefix.rstrip(".") or launch.graph.name.rpartition(".")[2]
    places = [f"{name}@{launch.call.places[name]}" for name in _given(launch.graph, launch.group)]
    return f"{where}: {launch.group.name}" + (f" -> {', '.join(places)}" if places else "")


def _given(graph: OpGraph, group: Group) -> list[str]:
    """The results of a group that other groups read, in order."""
    return [name for node in group.nodes for name in node.outputs if name in graph.planned]


def _node(graph: OpGraph, node: Node) -> str:
    given = ", ".join(f"{name} {graph.buffers[name].dtype}{list(graph.buffers[name].shape)}" for name in node.outputs)
    pairs = zip(node.names, node.arguments, strict=True)
    words = [f"{name}={_argument(graph, value)}" for name, value in pairs if value is not None]
    changes = f" changes {', '.join(node.updates)}" if node.updates else ""
    return f"{given or '()'} = {node.op}({', '.join(words)}){changes}"


def _argument(graph: OpGraph, value: Argument) -> str:
    match value:
        case View():
            if value == whole(graph.buffers[value.buffer]):
                return value.buffer
            return f"{value.buffer}{list(value.shape)}:{list(value.strides)}+{value.offset}"
        case DType():
            return value.name
        case tuple():
            return f"[{', '.join(_argument(graph, item) for item in value)}]"
        case _:
            return str(value)
