"""Graphs and schedules as JSON, for the compile cache and bundles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bringup.compile.schedule.graph.op_graph import Argument, Buffer, DType, Group, Node, OpGraph, View
from bringup.compile.schedule.schedule import EntrySchedule, Schedule, ScheduledCall


def graph_to_json(graph: OpGraph) -> dict[str, Any]:
    """An OpGraph as JSON data."""
    return {
        "name": graph.name,
        "buffers": [[b.name, list(b.shape), b.dtype, b.kind] for b in graph.buffers.values()],
        "groups": [[_node_to_json(node) for node in group.nodes] for group in graph.groups],
        "results": [_argument_to_json(view) for view in graph.results],
    }


def graph_from_json(data: Mapping[str, Any]) -> OpGraph:
    """The reverse of `graph_to_json`. Raises KeyError, TypeError or ValueError for other data."""
    listed = (
        Buffer(name=name, shape=tuple(shape), dtype=dtype, kind=kind) for name, shape, dtype, kind in data["buffers"]
    )
    groups = tuple(Group(tuple(map(_node, nodes))) for nodes in data["groups"])
    results = tuple(_view(item["view"]) for item in data["results"])
    return OpGraph(data["name"], {buffer.name: buffer for buffer in listed}, groups, results)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON data; sites are not stored."""
    entries = [
        {
            "name": entry.name,
            "calls": [_call_to_json(call) for call in entry.calls],
            "outputs": {name: list(owner) for name, owner in entry.outputs.items()},
            "nbytes": entry.nbytes,
            "peak": entry.peak,
        }
        for entry in schedule.entries.values()
    ]
    return {"graphs": [graph_to_json(graph) for graph in schedule.graphs.values()], "entries": entries}


def schedule_from_json(data: Mapping[str, Any]) -> Schedule:
    """The reverse of `schedule_to_json`. Raises KeyError, TypeError or ValueError for other data."""
    graphs = {graph.name: graph for graph in map(graph_from_json, data["graphs"])}
    entries = (
        EntrySchedule(
            name=item["name"],
            calls=tuple(map(_call, item["calls"])),
            outputs={name: (number, buffer) for name, (number, buffer) in item["outputs"].items()},
            nbytes=item["nbytes"],
            peak=item["peak"],
        )
        for item in data["entries"]
    )
    return Schedule(graphs, {entry.name: entry for entry in entries})


def _call_to_json(call: ScheduledCall) -> dict[str, Any]:
    values = {name: list(owner) for name, owner in call.values.items()}
    names = {"function": call.function, "prefix": call.prefix, "borrowed": dict(call.borrowed)}
    return {**names, "places": dict(call.places), "values": values}


def _call(data: Mapping[str, Any]) -> ScheduledCall:
    values = {name: (number, buffer) for name, (number, buffer) in data["values"].items()}
    borrowed = {name: str(full) for name, full in dict(data.get("borrowed", {})).items()}
    return ScheduledCall(data["function"], data["prefix"], data["places"], values, borrowed)


def _node_to_json(node: Node) -> list[Any]:
    arguments = [[name, _argument_to_json(a)] for name, a in zip(node.names, node.arguments, strict=True)]
    return [node.op, arguments, list(node.outputs), list(node.updates)]


def _node(data: list[Any]) -> Node:
    op, arguments, outputs, updates = data
    names, values = tuple(name for name, _ in arguments), tuple(_argument(value) for _, value in arguments)
    return Node(op=op, names=names, arguments=values, outputs=tuple(outputs), updates=tuple(updates))


def _argument_to_json(value: Argument) -> Any:
    match value:
        case View():
            return {"view": [value.buffer, list(value.shape), list(value.strides), value.offset]}
        case DType():
            return {"dtype": value.name}
        case tuple():
            return [_argument_to_json(item) for item in value]
        case float() if not math.isfinite(value):  # JSON has no infinity
            return {"float": repr(value)}
        case _:
            return value


def _argument(data: Any) -> Argument:
    match data:
        case {"view": view}:
            return _view(view)
        case {"dtype": name}:
            return DType(name)
        case {"float": text}:
            return float(text)
        case list():
            return tuple(_argument(item) for item in data)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return data


def _view(data: list[Any]) -> View:
    buffer, shape, strides, offset = data
    return View(buffer, tuple(shape), tuple(strides), offset)
