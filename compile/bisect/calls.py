# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The error of each call of an entry, compiled separately and run on torch's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bringup.compile.bisect.derive import (
    Body,
    Signature,
    flat,
    program_of,
    spec_of,
    traced,
    value_name,
    with_values_as_states,
)
from bringup.compile.bisect.executors import Lower
from bringup.compile.bisect.replay import CallRun, Nodes, arrays, of_tokens, readable
from bringup.compile.parity.parity import relative
from bringup.compile.program.function_of import function_of
from bringup.compile.program.program import Call, Entry, Function, Program, TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram

COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class CallError:
    """The error of one call, as `relative`: `value` of its results, `state_error` of the states that it writes.

    `state` is the name of the state with the largest error, `left` its array after the call.
    """

    name: str
    value: float
    state_error: float
    state: str
    left: np.ndarray | None

    @property
    def worst(self) -> float:
        """The larger of the two errors."""
        return max(self.value, self.state_error)


def call_names(entry: Entry) -> list[str]:
    """`prologue`, `model.layers.0`, …, `epilogue`."""
    return [call.prefix.rstrip(".") or call.function.rpartition(".")[2] for call in entry.calls]


def separated(program: Program, entry: Entry) -> Program:
    """The entry with its calls separated: the inputs of each call are states, and all results are collected."""
    blocks = program.interface.max_blocks
    functions: dict[str, tuple[Function, ExportedProgram]] = {}
    states: dict[str, TensorSpec] = {spec.name: spec for spec in program.interface.states}
    results: list[TensorSpec] = []
    step: list[TensorSpec] = []
    for call in entry.calls:
        function, exported = program.interface.function(call.function), program.exported[call.function]
        taken = Signature(function, exported, blocks)
        step = taken.step
        for index, spec in enumerate(taken.values):
            name = call.prefix + value_name(index)
            states[name] = replace(spec, name=name)
        nodes = {node.name: node for node in exported.graph.nodes}
        results += [spec_of(nodes[str(name)]) for name in exported.graph_signature.user_outputs]
        if call.function not in functions:
            functions[call.function] = with_values_as_states(function, exported, blocks, {}, _as_it_is(exported))
    collect = traced(lambda w, s, values, step: [flat(values)], {}, {}, results, step, blocks)
    functions[COLLECT] = function_of(COLLECT, (), (), collect), collect
    calls = [replace(call, inputs=()) for call in entry.calls]
    calls.append(Call(function=COLLECT, prefix="", inputs=tuple(range(len(results)))))
    return program_of(program, entry, calls, functions, list(states.values()))


def _as_it_is(exported: ExportedProgram) -> Body:
    return lambda weights, states, values, step: Nodes(exported).on(
        [*weights.values(), *states.values(), *values, *step]
    )


def compare_calls(
    program: Program,
    entry: Entry,
    runs: Sequence[CallRun],
    step: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
    lower: Lower,
) -> list[CallError]:
    """Runs the separated entry from `states`, with the inputs of torch's runs; returns the error of each call."""
    executor = lower(separated(program, entry))
    given = {
        run.call.prefix + value_name(index): array for run in runs for index, array in enumerate(arrays(run.values))
    }
    executor.set_states({**states, **given})
    collected = executor.step(entry.name, step)["logits"]
    after = executor.states()
    found: list[CallError] = []
    at = 0
    for name, run in zip(call_names(entry), runs, strict=True):
        values = 0.0
        for output in arrays(run.outputs):
            got, at = collected[at : at + output.size].reshape(output.shape), at + output.size
            values = max(values, relative(of_tokens(got, entry, step), of_tokens(output, entry, step)))
        written = program.interface.function(run.call.function).updates
        states_after = dict(
            zip(run.call.bound(written), arrays([run.states_after[name] for name in written]), strict=True)
        )
        errors = {name: relative(readable(after[name]), readable(array)) for name, array in states_after.items()}
        worst = max(errors, key=lambda name: errors[name], default="")
        found.append(CallError(name, values, errors.get(worst, 0.0), worst, after.get(worst)))
    return found
