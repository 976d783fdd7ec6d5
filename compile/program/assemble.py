"""A program's stages and how they are put together. What traces a stage is handed in; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from bringup.compile.program.export_options import Layout, Value
from bringup.compile.program.program import Call, Entry, Function, Interface, TensorSpec
from bringup.compile.program.step_inputs import slots_for
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Const, Param, State
from bringup.spec import Shape

# The last two: the epilogue, of which rows. `final`: what the epilogue makes its logits of.
Part = Literal["prologue", "layer", "final", "last_rows", "all_rows"]
Code = TypeVar("Code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One function to trace: a part of the model over `num_tokens` tokens of one sequence.

    `path` is where its module hangs ("" for the graph itself), `values` what it is called with beside the step.
    """

    name: str
    part: Part
    path: str
    num_tokens: int
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Generic[Code]):
    """A traced stage: the names that it binds, what it gives, and its code in whatever form the tracer makes.

    `found`: it was in the cache.
    """

    function: Function
    outputs: tuple[Value, ...]
    code: Code
    found: bool = False


Trace = Callable[[Stage], Traced[Code]]


def trace_entry(layout: Layout, name: str, num_tokens: int, trace: Trace[Code]) -> tuple[Entry, list[Traced[Code]]]:
    """One entry point: its stages traced once per kind of layer, and the calls that run them one after the other."""
    traced: dict[str, Traced[Code]] = {}
    calls: list[Call] = []

    def call(function: str, part: Part, path: str, values: Sequence[Value], inputs: Sequence[int]) -> None:
        if function not in traced:
            stage = Stage(name=function, part=part, path=path, num_tokens=num_tokens, values=tuple(values))
            traced[function] = trace(stage)
        calls.append(Call(function=function, prefix=f"{path}." if path else "", inputs=tuple(inputs)))

    inputs = {key: ((num_tokens, *shape), dtype) for key, (shape, dtype) in layout.inputs.items()}
    first = len(inputs)
    call(f"{name}.prologue", "prologue", "", tuple(inputs.values()), range(first))
    values = traced[f"{name}.prologue"].outputs
    shared, x = range(first + 1, first + len(values)), [first]
    for index, (path, kind) in enumerate(zip(layout.layers, layout.kinds, strict=True)):
        call(f"{name}.layer{kind}", "layer", path, values, (x[-1], *shared))
        x.append(first + len(values) + index)
    rows: Part = "last_rows" if num_tokens > 1 and not layout.all_logits else "all_rows"
    call(f"{name}.epilogue", rows, "", values[:1], (x[-1],))
    outputs = {"logits": x[-1] + 1}
    if len(layout.layers) in layout.aux_hidden:
        call(f"{name}.final", "final", "", values[:1], (x[-1],))
        x[-1] += 2
    outputs |= {f"hidden.{index}": x[index] for index in layout.aux_hidden}
    entry = Entry(
        name=name,
        num_tokens=num_tokens,
        num_sequences=1,
        calls=tuple(calls),
        outputs=outputs,
        inputs=tuple(TensorSpec(name=key, shape=shape, dtype=dtype) for key, (shape, dtype) in inputs.items()),
    )
    return entry, list(traced.values())


def interface_of(
    layout: Layout, entries: Iterable[tuple[Entry, list[Traced[Code]]]], tensors: tuple[Sequence[TensorSpec], ...]
) -> Interface:
    """All entries together; `tensors` are the weights and the states."""
    parts = list(entries)
    weights, states = tensors
    return Interface(
        functions=tuple(traced.function for _, stages in parts for traced in stages),
        entries=tuple(entry for entry, _ in parts),
        weights=tuple(weights),
        states=tuple(states),
        max_blocks=layout.max_blocks,
        all_logits=layout.all_logits,
    )


def tensors_of(graph: Graph, context: int) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """What a graph's program binds by name: its weights, tables among them, and its states."""

    def spec(name: str, shape: Shape, dtype: str | None) -> TensorSpec:
        return TensorSpec(name=name, shape=shape, dtype=dtype or graph.dtype)

    weights = [spec(name, *leaf.stored(graph.dtype)) for name, leaf in graph.leaves(Param)]
    weights += [spec(name, leaf.table(context).shape, leaf.declared_dtype) for name, leaf in graph.leaves(Const)]
    states = [spec(name, leaf.sized(slots_for(context)), leaf.declared_dtype) for name, leaf in graph.leaves(State)]
    return weights, states
