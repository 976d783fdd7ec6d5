# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportPrivateUsage=false
"""Runs traced functions with torch and records intermediate results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from bringup.compile.program.functional import Functional
from bringup.compile.program.program import Call, Entry, Program
from bringup.compile.program.torch_arrays import to_numpy, to_tensor
from bringup.graphs.core.step import BLOCK, FIELDS


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator of bringup writes in place."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "bringup":
        return []
    given = zip(node.target._schema.arguments, node.args, strict=False)
    return [value for info, value in given if info.is_write and isinstance(value, fx.Node)]


class Nodes(fx.Interpreter):
    """Runs a graph node by node; `seen` has the result of each, a tensor or a size, or the tensor that it wrote.

    `instead(name, result)` returns what the nodes after it read: the result, or a replacement.
    """

    def __init__(
        self, exported: ExportedProgram | Functional, instead: Callable[[str, Any], Any] = lambda _, out: out
    ) -> None:
        super().__init__(exported.graph_module)
        self.exported, self.instead = exported, instead
        self.seen: dict[str, Any] = {}

    def on(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the graph on its flat arguments; returns its results, after the updated inputs of a `Functional`."""
        left = iter(inputs)
        specs = self.exported.graph_signature.input_specs
        args = [
            next(left) if spec.kind is InputKind.USER_INPUT else self.exported.constants[spec.target or ""]
            for spec in specs
        ]
        results: Any = self.run(*args)
        return list(results)[-len(self.exported.graph_signature.user_outputs) :]

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        if written := written_by(n):
            self.seen[n.name] = self.env[written[0]]
            return out
        if n.op != "call_function" or not isinstance(out, Tensor | int | torch.SymInt):
            return out
        self.seen[n.name] = out
        return self.instead(n.name, out)


@dataclass(frozen=True, slots=True)
class CallRun:
    """One call as torch ran it; states by their names in the function."""

    call: Call
    weights: dict[str, Tensor]
    states: dict[str, Tensor]
    values: tuple[Tensor, ...]
    step: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states_after: dict[str, Tensor]

    @property
    def inputs(self) -> list[Tensor]:
        """The flat arguments. States are those before the call: a copy, because a run may write to them."""
        states = [state.clone() for state in self.states.values()]
        return [*self.weights.values(), *states, *self.values, *self.step]


def run_calls(
    program: Program,
    entry: Entry,
    step: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    states: Mapping[str, np.ndarray],
) -> list[CallRun]:
    """Runs every call of an entry, each on the results of the calls before it."""
    fields = tuple(torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in FIELDS)
    run = {name: exported.module() for name, exported in program.exported.items()}
    values = [to_tensor(np.ascontiguousarray(step[spec.name])) for spec in entry.inputs]
    done: list[CallRun] = []
    for call in entry.calls:
        function = program.interface.function(call.function)
        own = zip(function.weights, call.bound(function.weights), strict=True)
        state_names = zip(function.states, call.bound(function.states), strict=True)
        bound_weights = {name: to_tensor(weights[full]) for name, full in own}
        before = {name: to_tensor(states[full].copy()) for name, full in state_names}
        after = {name: state.clone() for name, state in before.items()}
        given = tuple(values[index] for index in call.inputs)
        with torch.no_grad():
            outputs = tuple(run[call.function](bound_weights, after, given, fields))
        values += outputs
        done.append(CallRun(call, bound_weights, before, given, fields, outputs, after))
    return done


def arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The tensors as numpy arrays; bfloat16 is that of ml_dtypes."""
    return [to_numpy(tensor) for tensor in tensors]


def of_tokens(array: np.ndarray, entry: Entry, step: Mapping[str, np.ndarray]) -> np.ndarray:
    """The array without rows of padding, which are undefined; an array whose rows are not tokens is unchanged."""
    has_tokens = array.ndim > 0 and len(array) == entry.num_tokens
    return array[: int(step["starts"][-1])] if has_tokens else array


def readable(state: np.ndarray) -> np.ndarray:
    """The rows of a state that a step can read: all but the last block, to which padding is written."""
    return state[: len(state) - BLOCK]
