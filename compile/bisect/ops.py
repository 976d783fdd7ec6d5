# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The first operation of a compiled call whose result departs from torch's.

First every operation is compiled separately, with torch's inputs: nothing is fused with it. If none departs, the fault
is in what is compiled together. Then the function is cut after an operation, by bisection, and everything before the
cut is compiled without restrictions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bringup.compile.bisect.calls import CallError
from bringup.compile.bisect.derive import (
    Body,
    flat,
    program_of,
    user_inputs,
    value_name,
    with_values_as_states,
)
from bringup.compile.bisect.executors import Lower
from bringup.compile.bisect.replay import CallRun, Nodes, arrays, of_tokens, readable, written_by
from bringup.compile.parity.parity import OP_TOLERANCE, STAGE_TOLERANCE, Op, relative
from bringup.compile.parity.scale import NONE, ROUNDOFF, Scale, scale_of
from bringup.compile.program.program import Call, Entry, Executor, Program, TensorSpec
from bringup.spec import Site

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

    from bringup.compile.program.functional import Functional

LARGE = 1 << 20  # elements; a larger array that is computed from weights only (a transposed matrix) is not compared


@dataclass(frozen=True, slots=True)
class Found:
    """The operation, and its tensors: inputs by name, torch's result (`ours`), and that of the compiled program."""

    op: Op
    inputs: dict[str, np.ndarray]
    ours: np.ndarray
    compiled: np.ndarray


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a compiled operation, and its error compared with torch's: the largest difference, and a factor."""

    got: np.ndarray
    error: float
    scale: Scale

    def departs(self, tolerance: float) -> bool:
        return not self.error <= tolerance or self.scale.excess > 1


class Operations:
    """The operations of one call. Its methods compile parts of the call and compare them with torch's results."""

    def __init__(
        self, program: Program, entry: Entry, run: CallRun, step: Mapping[str, np.ndarray], lower: Lower
    ) -> None:
        import torch

        from bringup.compile.program.functional import Decompositions, functional

        self.program, self.entry, self.run, self.step, self.lower = program, entry, run, step, lower
        self.function = program.interface.function(run.call.function)
        exported = program.exported[run.call.function]
        # Opaque operators write to states in place, and targets do not support another form of them.
        is_whole = any(map(written_by, exported.graph.nodes))
        self.exported = exported if is_whole else functional(exported, Decompositions({}), lines=True)
        replay = Nodes(self.exported)
        with torch.no_grad():
            replay.on(run.inputs)
        self.sizes = {name: size for name, size in replay.seen.items() if isinstance(size, int)}
        tensors = {name: seen for name, seen in replay.seen.items() if name not in self.sizes}
        self.given = dict(zip(tensors, arrays(list(tensors.values())), strict=True))
        moved = _moved(self.exported, len(run.weights))
        graph = [node for node in self.exported.graph.nodes if node.name in self.given]
        self.nodes = [node for node in graph if node.name in moved or self.given[node.name].size <= LARGE]
        self.unspecified = _in_blocks(self.exported)
        self.state_shapes = {tuple(state.shape) for state in run.states.values()}
        self.cut_off: dict[int, _Result] = {}

    def alone(self, *, averaged: bool = False) -> Found | None:
        """The first operation that departs when each is compiled separately, with torch's inputs and sizes.

        `averaged`: logits agree, so a value may be off by several roundings, and a selection may differ.
        """
        tolerances = STAGE_TOLERANCE if averaged else OP_TOLERANCE
        extra = {_given(node.name): _stored(node.name, self.given[node.name]) for node in self.nodes}

        def body(weights: Any, states: Any, values: Any, step: Any) -> list[Tensor]:
            def instead(name: str, out: Any) -> Any:
                if name in self.sizes:
                    return self.sizes[name]
                return states[_given(name)].to(out.dtype) if _given(name) in extra else out

            replay = Nodes(self.exported, instead)
            own = [state for name, state in states.items() if name not in extra]
            replay.on([*weights.values(), *own, *values, *step])
            return [flat([replay.seen[node.name] for node in self.nodes])]

        prefix = self.run.call.prefix
        given = {prefix + _given(node.name): _bytes(self.given[node.name]) for node in self.nodes}
        row = self._row(self._executor(extra, body), given)
        at = 0
        for node in self.nodes:
            wanted = self.given[node.name]
            got, at = row[at : at + wanted.size].reshape(wanted.shape), at + wanted.size
            result = self._result(got, wanted)
            tolerance = tolerances.get(wanted.dtype.name, np.inf if averaged else 0.0)
            if result.departs(tolerance) and node.name not in self.unspecified:
                return self._found(node, result, tolerance, alone=True)
        return None

    def together(self, tolerance: float) -> Found | None:
        """The first operation whose result departs when the function ends with it, compiled with all before it."""
        results = {str(spec.arg.name) for spec in self.exported.graph_signature.output_specs}
        index = {node.name: at for at, node in enumerate(self.nodes)}
        ends = [index[name] for name in results if name in index]
        high = next((end for end in sorted(ends) if self._departs(end, tolerance)), None)
        if high is None:
            return None
        low = -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._departs(middle, tolerance) else (middle, high)
        while True:  # operations are not a chain: an operand of this one may depart already
            operands = [index[source.name] for source in self.nodes[high].all_input_nodes if source.name in index]
            before = next((at for at in operands if self._departs(at, tolerance)), None)
            if before is None:
                return self._found(self.nodes[high], self.cut_off[high], tolerance, alone=False)
            high = before

    def one_by_one(self, dtype: str) -> Found | None:
        """The same if the function's results agree: the function is cut after each operation, in order.

        Results have the rounding of all operations before them, which is to `dtype`, that of the program.
        """
        for index, node in enumerate(self.nodes):
            wanted = self.given[node.name]
            if wanted.dtype.name not in STAGE_TOLERANCE:
                continue  # a selection, which rounding may change
            if self._departs(index, STAGE_TOLERANCE[dtype], dtype):
                return self._found(node, self.cut_off[index], STAGE_TOLERANCE[dtype], alone=False)
        return None

    def left(self, call: CallError, tolerance: float) -> Found | None:
        """The operation that writes the state of `call` that departs; None if no state does."""
        inner = call.state.removeprefix(self.run.call.prefix)
        if call.left is None or call.state_error <= tolerance:
            return None
        node = self._writer(len(self.function.weights) + self.function.states.index(inner))
        found = self._found(node, _Result(call.left, call.state_error, NONE), tolerance, alone=False)
        return replace(found, op=replace(found.op, state=call.state))

    def _writer(self, place: int) -> Any:
        """The last operation that writes the input with this index."""
        if isinstance(updated := getattr(self.exported, "updated", None), tuple):
            results: Any = self.exported.graph.output_node().args[0]
            return results[updated.index(place)]
        state = user_inputs(self.exported)[place]
        return [node for node in self.exported.graph.nodes if state in written_by(node)][-1]

    def _departs(self, index: int, tolerance: float, dtype: str = "") -> bool:
        """Whether an operation departs when the function ends with it; `dtype` as for `_result`."""
        if self.nodes[index].name in self.unspecified:
            return False
        if index not in self.cut_off:
            name = self.nodes[index].name

            def body(weights: Any, states: Any, values: Any, step: Any) -> list[Tensor]:
                replay = Nodes(self.exported)
                replay.on([*weights.values(), *states.values(), *values, *step])
                return [flat([replay.seen[name]])]

            wanted = self.given[name]
            got = self._row(self._executor({}, body), {}).reshape(wanted.shape)
            self.cut_off[index] = self._result(got, wanted, dtype)
        return self.cut_off[index].departs(tolerance)

    def _executor(self, extra: Mapping[str, TensorSpec], body: Body) -> Executor:
        function, exported = with_values_as_states(
            self.function, self.program.exported[self.function.name], self.program.interface.max_blocks, extra, body
        )
        call = Call(function=function.name, prefix=self.run.call.prefix, inputs=())
        state_specs = list(zip(function.states, _state_specs(self.run, extra), strict=True))
        states = [replace(spec, name=call.prefix + name) for name, spec in state_specs]
        return self.lower(program_of(self.program, self.entry, [call], {function.name: (function, exported)}, states))

    def _row(self, executor: Executor, more: Mapping[str, np.ndarray]) -> np.ndarray:
        """The entry's output for torch's states and values."""
        prefix = self.run.call.prefix
        states = dict(zip(self.run.states, arrays(list(self.run.states.values())), strict=True))
        values = {value_name(index): array for index, array in enumerate(arrays(self.run.values))}
        executor.set_states({prefix + name: array for name, array in {**states, **values}.items()} | dict(more))
        return executor.step(self.entry.name, self.step)["logits"]

    def _result(self, got: np.ndarray, wanted: np.ndarray, dtype: str = "") -> _Result:
        """Compares `got` with `wanted`. `dtype` is the type to which values were rounded; default: that of `wanted`."""
        dtype = dtype or wanted.dtype.name
        if wanted.shape in self.state_shapes:
            ours, right = readable(got), readable(wanted)
        else:
            ours, right = (of_tokens(array, self.entry, self.step) for array in (got, wanted))
        return _Result(got, relative(ours, right), scale_of(ours, right, dtype) if dtype in ROUNDOFF else NONE)

    def _found(self, node: Any, result: _Result, tolerance: float, *, alone: bool) -> Found:
        site, wanted = site_of(node), self.given[node.name]
        tensors = dict(
            zip([n.name for n in self.exported.graph.nodes if n.op == "placeholder"], self.run.inputs, strict=False)
        )
        inputs = {
            n.name: self.given[n.name] if n.name in self.given else arrays([tensors[n.name]])[0]
            for n in node.all_input_nodes
            if n.name in self.given or n.name in tensors
        }
        op = Op(
            entry=self.entry.name,
            call=self.run.call.prefix.rstrip(".") or self.function.name.rpartition(".")[2],
            name=node.name,
            target=str(node.target),
            file=site.file,
            line=site.line,
            shape=wanted.shape,
            dtype=wanted.dtype.name,
            inputs=tuple(f"{name} {array.dtype.name}{list(array.shape)}" for name, array in inputs.items()),
            relative=result.error,
            tolerance=tolerance,
            alone=alone,
            factor=result.scale.factor if result.error <= tolerance else 0.0,
        )
        return Found(op, inputs, wanted, result.got)


def site_of(node: Any) -> Site:
    """The innermost line of the model's source that created a node."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    file, line = lines[-1] if lines else ("", 0)
    return Site(file, int(line))


def _given(name: str) -> str:
    return f"given.{name}"


def _stored(name: str, array: np.ndarray) -> TensorSpec:
    """The state for a result; bool is stored as uint8."""
    dtype = "uint8" if array.dtype == bool else array.dtype.name
    return TensorSpec(name=_given(name), shape=array.shape, dtype=dtype)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.astype(np.uint8) if array.dtype == bool else array


def _state_specs(run: CallRun, extra: Mapping[str, TensorSpec]) -> list[TensorSpec]:
    tensors: Sequence[Tensor] = [*run.states.values(), *run.values]
    own = [TensorSpec(name="", shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch.")) for t in tensors]
    return [*own, *extra.values()]


def _in_blocks(exported: ExportedProgram | Functional) -> set[str]:
    """Nodes whose rows are blocks of experts: rows without a token are undefined."""
    found: set[str] = set()
    for node in exported.graph.nodes:
        name = str(node.target)
        is_inside = any(source.name in found for source in node.all_input_nodes)
        if name.startswith("bringup.to_blocks.") or (is_inside and not name.startswith("bringup.from_blocks.")):
            found.add(node.name)
    return found


def _moved(exported: ExportedProgram | Functional, num_weights: int) -> set[str]:
    """Nodes that depend on more than weights."""
    weights = {node.name for node in user_inputs(exported)[:num_weights]}
    moved: set[str] = set()
    for node in exported.graph.nodes:
        outside = node.op == "placeholder" and node.name not in weights
        if outside or any(source.name in moved for source in node.all_input_nodes):
            moved.add(node.name)
    return moved
