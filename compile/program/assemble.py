"""Assembles a program from its stages. The tracer is an argument; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from bringup.compile.program.export_options import Layout
from bringup.compile.program.physical import AS_DECLARED, Buffers
from bringup.compile.program.program import (
    LORA_SLOTS,
    Call,
    Entry,
    EntryPoint,
    Function,
    Interface,
    StateSpec,
    TensorSpec,
    Value,
)
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Const, Param
from bringup.graphs.core.step import BLOCK
from bringup.spec import Shape

# The last two are the epilogue, of the last row of each sequence or of all rows. `final`: the input of the head.
# `hidden`: the hidden state that enters a layer.
Part = Literal["prologue", "layer", "hidden", "final", "last_rows", "all_rows"]
Tensors = tuple[Sequence[TensorSpec], Sequence[StateSpec]]  # weights, tables among them, and states
Code = TypeVar("Code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One function to trace: a part of the model, for the steps of an entry point.

    `path` is the path of its module ("" for the graph itself), `values` are its arguments besides the step. With
    `lora`, the last value is the slot of each sequence's LoRA, int64 [B].
    """

    name: str
    part: Part
    path: str
    point: EntryPoint
    values: tuple[Value, ...] = ()
    lora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Generic[Code]):
    """A traced stage: its function, and its code in the tracer's form. `found`: it was in the cache."""

    function: Function
    code: Code
    found: bool = False


Trace = Callable[[Stage], Traced[Code]]


def trace_entry(layout: Layout, point: EntryPoint, trace: Trace[Code]) -> tuple[Entry, list[Traced[Code]]]:
    """One entry point: its stages, traced once for each kind of layer, and the calls that run them in order.

    Raises BU304 if layers do not return what the next layer takes, or if a size is not fixed.
    """
    name, num_tokens = point.point_name, point.num_tokens
    traced: dict[str, Traced[Code]] = {}
    calls: list[Call] = []
    inputs = {key: ((num_tokens, *shape), dtype) for key, (shape, dtype) in layout.inputs.items()}
    chosen: dict[str, Value] = {LORA_SLOTS: ((point.num_sequences,), "int64")} if layout.lora else {}
    slots = tuple(range(len(inputs), len(inputs) + len(chosen)))
    ends = layout.lora_ends
    of_end, slots_of_end = (tuple(chosen.values()), slots) if ends else ((), ())
    count = len(inputs) + len(chosen)  # of values so far: the entry's inputs, then the results of each call

    def call(
        part: Part,
        values: Sequence[Value],
        given: Sequence[int],
        path: str = "",
        function: str = "",
        lora: bool = False,
    ) -> range:
        """Adds a call; returns the indices of its results among the entry's values."""
        nonlocal count
        function = f"{name}.{function or part}"
        if function not in traced:
            stage = Stage(name=function, part=part, path=path, point=point, values=tuple(values), lora=lora)
            traced[function] = trace(stage)
        prefix = f"{path}." if path else ""
        of_others = {state: layout.borrowed.get(prefix + state) for state in traced[function].function.states}
        borrowed = {state: name for state, name in of_others.items() if name}
        calls.append(Call(function=function, prefix=prefix, inputs=tuple(given), borrowed=borrowed))
        count += len(traced[function].function.results)
        return range(count - len(traced[function].function.results), count)

    first = call("prologue", (*inputs.values(), *of_end), (*range(len(inputs)), *slots_of_end), lora=ends)
    values = traced[f"{name}.prologue"].function.results
    _check_sizes(values)
    carried = values[: layout.carried]
    check_carried(layout, "prologue", carried, carried)
    x, shared = [first[: layout.carried]], first[layout.carried :]
    for path, kind in zip(layout.layers, layout.kinds, strict=True):
        given = (*x[-1], *shared, *slots)
        x.append(call("layer", (*values, *chosen.values()), given, path, f"layer{kind}", lora=layout.lora))
        check_carried(layout, path, traced[f"{name}.layer{kind}"].function.results, carried)
    rows: Part = "last_rows" if not point.decode and not layout.all_logits else "all_rows"
    head = call(rows, (*carried, *of_end), (*x[-1], *slots_of_end), function="epilogue", lora=ends)
    outputs = {"logits": head[0]}
    for index in layout.aux_hidden:
        if index == len(layout.layers):
            hidden = call("final", carried, x[-1])
        else:
            hidden = call("hidden", carried, x[index]) if layout.derives_hidden else x[index]
        outputs[f"hidden.{index}"] = hidden[0]
    entry = Entry(
        name=name,
        num_tokens=num_tokens,
        num_sequences=point.num_sequences,
        decode=point.decode,
        contiguous=point.contiguous,
        proposals=point.proposals,
        calls=tuple(calls),
        outputs=outputs,
        inputs=tuple(
            TensorSpec(name=key, shape=shape, dtype=dtype) for key, (shape, dtype) in (inputs | chosen).items()
        ),
    )
    return entry, list(traced.values())


def check_carried(layout: Layout, part: str, given: Sequence[Value], taken: Sequence[Value]) -> None:
    """Raises BU304 if the results of the prologue or a layer are not the inputs of the next layer."""
    if len(given) != layout.carried:
        counted = f"{layout.carried} value{'s' * (layout.carried > 1)} from layer to layer"
        help = "set `carried` of the graph, and return as many values from each layer, in a tuple"
        raise fail("BU304", f"the graph carries {counted}, and `{part}` returns {len(given)}", help=help)
    for index, (value, other) in enumerate(zip(given, taken, strict=True)):
        if value != other:
            message = f"`{part}` returns value {index} as {spelled_value(value)}"
            message += f", and the next layer expects {spelled_value(other)}"
            raise fail("BU304", message, help="return it in the shape and dtype that `prologue` returns")


def _check_sizes(values: Sequence[Value]) -> None:
    """Raises BU304 for results of the prologue whose sizes are not fixed: layers are traced with fixed sizes."""
    for index, (shape, dtype) in enumerate(values):
        if -1 in shape:
            message = f"`prologue` returns value {index} as {spelled_value((shape, dtype))}: -1 is not a fixed size"
            help = "compute values that depend on the number of cache blocks, as `step.block_table`, in the layers"
            raise fail("BU304", message, help=help)


def spelled_value(value: Value) -> str:
    """A value as text: `float32 [16, 64]`."""
    shape, dtype = value
    return f"{dtype} {list(shape)}"


def interface_of(layout: Layout, entries: Iterable[tuple[Entry, list[Traced[Code]]]], tensors: Tensors) -> Interface:
    """The interface of all entries; `tensors` are the weights and the states."""
    parts = list(entries)
    weights, states = tensors
    functions = {traced.function.name: traced.function for _, stages in parts for traced in stages}
    calls = (call for entry, _ in parts for call in entry.calls)
    read = {name for call in calls for name in call.bound(functions[call.function].states)}
    return Interface(
        functions=tuple(functions.values()),
        entries=tuple(entry for entry, _ in parts),
        weights=tuple(weights),
        # A module whose forward is not called, such as one whose matrix is a part of another product, has no LoRA.
        states=tuple(state for state in states if state.kind != "lora" or state.name in read),
        max_blocks=layout.max_blocks,
        all_logits=layout.all_logits,
        block_size=BLOCK,
        num_blocks=layout.sizes.blocks,
        num_rows=layout.sizes.rows,
        rewindable=layout.rewindable,
    )


def tensors_of(graph: Graph, layout: Layout, buffers: Buffers = AS_DECLARED) -> Tensors:
    """The tensors that a graph's program binds by name: weights, including buffers and tables, and states."""

    def spec(name: str, shape: Shape, dtype: str | None) -> TensorSpec:
        return TensorSpec(name=name, shape=shape, dtype=dtype or graph.dtype)

    params = ((name, leaf) for name, leaf in graph.leaves(Param) if name not in buffers.views)
    weights = [spec(name, *leaf.stored(graph.dtype)) for name, leaf in params]
    weights += [spec(name, *declared.storage) for name, declared in buffers.declared.items()]
    weights += [spec(name, leaf.table(layout.context).shape, leaf.declared_dtype) for name, leaf in graph.leaves(Const)]
    states = [
        StateSpec(
            name=name,
            shape=leaf.sized(layout.sizes),
            dtype=leaf.declared_dtype or graph.dtype,
            kind=leaf.kind(layout.sizes),
        )
        for name, leaf in graph.states().items()
    ]
    return weights, states
