# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Recorded stages: of every family the operations, views and results that torch.export's graph of the stage has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup.compile.program.assemble import Stage, trace_entry
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.lean_tracing import LEFT_ALONE, asking, lean_metas
from bringup.compile.program.physical import buffers_of
from bringup.compile.program.record import Recorded, Unrecordable, as_exported, recorded
from bringup.compile.program.trace import tracer_of
from bringup.compile.schedule.codec import graph_to_json
from bringup.compile.schedule.graph.from_export import op_graph
from bringup.compile.targets.schedule import SCHEDULE_TARGET
from bringup.graphs.core.graph import Graph
from bringup.graphs.ops.lowering import OpLowering
from tests.models import family
from tests.models.test_families import Case
from tests.schedule.test_families import CONTEXT, cases

PREFILL = 32


def graphs_of(graph: Graph, *, fixed_sizes: bool) -> dict[str, Any]:
    """Each stage as JSON, temporaries by number; of those that were to be recorded, that they were."""
    layout = layout_of(graph, context=CONTEXT, buckets=(PREFILL,), max_batch_size=1 if graph.inputs else 2)
    ops = OpLowering(opaque=SCHEDULE_TARGET.opaque, implementations=SCHEDULE_TARGET.implementations)
    buffers = buffers_of(graph, SCHEDULE_TARGET.layout(graph))
    tracer = tracer_of(graph, layout, ops, buffers, source_lines=False, fixed_sizes=fixed_sizes)
    found: dict[str, Any] = {}

    def traced(stage: Stage) -> Any:
        done = tracer(stage)
        assert isinstance(done.code, Recorded) is fixed_sizes, stage
        found[stage.name] = numbered(graph_to_json(op_graph(done.function, done.code))), done.function
        return done

    for entry in layout.entries:
        trace_entry(layout, entry, traced)
    return found


def numbered(graph: Any) -> Any:
    """The same with temporaries, which have the names of torch's nodes, by number."""
    names: dict[str, str] = {}

    def renamed(value: Any) -> Any:
        match value:
            case str() if value.startswith("%"):
                return names.setdefault(value, f"%{len(names)}")
            case list():
                return [renamed(item) for item in value]
            case dict():
                return {renamed(key): renamed(item) for key, item in value.items()}
            case _:
                return value

    return renamed({"groups": graph["groups"], **graph})


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("case", cases())
def test_every_family(case: Case, tmp_path: Path) -> None:
    graph = family.written(case.module, case.name, tmp_path / "checkpoint", case.dtype).job().graph
    ours, exported = (graphs_of(graph, fixed_sizes=fixed) for fixed in (True, False))
    assert ours.keys() == exported.keys()
    for name in ours:
        assert ours[name] == exported[name], name


def changed_in_place(x: Tensor, state: Tensor) -> list[Tensor]:
    state[2:4].copy_(x)
    return [state.sum(0)]


def split_and_joined(x: Tensor, state: Tensor) -> list[Tensor]:
    first, second = x.chunk(2, 1)
    return [torch.cat([second, first], 1), state]


def counted(x: Tensor, state: Tensor) -> list[Tensor]:
    rows = torch.arange(state.shape[0])
    mask = torch.zeros(3, 5, dtype=torch.int64)
    mask[1:].add_(rows[None, :])
    return [mask, (rows[:, None] >= rows[None, 2:]).sum(-1)]


@pytest.mark.parametrize("function", [changed_in_place, split_and_joined, counted])
def test_a_recorded_graph_computes_what_the_function_does(function: Callable[..., list[Tensor]]) -> None:
    def meta() -> list[Tensor]:
        return [torch.empty(2, 6, device="meta"), torch.empty(5, 6, device="meta")]

    def real() -> list[Tensor]:
        return [torch.arange(12.0).reshape(2, 6), torch.arange(30.0).reshape(5, 6)]

    inputs = meta()
    with torch.no_grad(), torch.device("meta"):
        graph = recorded(lambda: function(*inputs), inputs).graph_module
    for node in graph.graph.nodes:
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "device"}
    graph.recompile()
    ours, wanted = real(), real()
    results, expected = graph(*ours), function(*wanted)
    assert len(results) == len(expected)
    assert all(map(torch.equal, [*results, *ours], [*expected, *wanted]))


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: x * torch.tensor([2.0]),
    "another shape in place": lambda x: x.transpose_(0, 1) + 1,
    "another precision": lambda x: autocast(x),
    "a graph in the graph": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "what a tensor holds": lambda x: x if x.sum() > 0 else -x,
    "where a tensor is": lambda x: x if x.device.type == "cpu" else -x,
    "whether a tensor is there": lambda x: -x if x.is_meta else x,
}


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_would_not_say_is_refused(name: str) -> None:
    x = torch.empty(2, 6, device="meta")
    with torch.no_grad(), torch.device("meta"), as_exported(), pytest.raises((Unrecordable, RuntimeError)):
        recorded(lambda: [REFUSED[name](x)], [x])


def test_branches_are_those_of_an_export() -> None:
    def branches() -> list[bool]:
        return [torch.compiler.is_exporting(), torch.compiler.is_compiling()]

    x = torch.empty(2, 6, device="meta")
    with torch.no_grad(), torch.device("meta"), as_exported():
        graph = recorded(lambda: [torch.sin(x) if all(branches()) else torch.cos(x)], [x]).graph
    assert [str(node.target) for node in graph.nodes if node.op == "call_function"] == ["aten.sin.default"]
    assert branches() == [False, False]


LEAN = """
import sys
import torch
from bringup.compile.program.lean_tracing import lean_metas
x, rows = torch.empty(3, 4, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")
with lean_metas():
    y = torch.nn.functional.gelu((x * 2 + x)[rows]).softmax(-1)
    torch.where(y > 0, y.mean(-1, keepdim=True), torch.arange(4, device="meta").cumsum(0))
assert "torch._dynamo" not in sys.modules
x.sigmoid() * x
assert "torch._dynamo" in sys.modules, "torch has become faster: lean_metas is needed no longer"
"""


@pytest.mark.slow
def test_shapes_are_computed_without_torchs_compiler() -> None:
    subprocess.run([sys.executable, "-c", LEAN], check=True)


def test_functions_are_as_they_were_after_the_block() -> None:
    functions = [function for function in asking() if not hasattr(function, LEFT_ALONE)]
    assert functions
    with lean_metas():
        assert all(hasattr(function, LEFT_ALONE) for function in functions)
    assert not any(hasattr(function, LEFT_ALONE) for function in functions)
