# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Smaller programs, derived from a program: its functions are exported again, with other inputs and outputs.

The values that a call or an operation gets from the one before it become states. So an executor whose states are set
to torch's values computes each part from torch's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bringup.compile.program.function_of import function_of
from bringup.compile.program.program import Call, Entry, Function, Program, StateSpec, TensorSpec
from bringup.graphs.core.step import FIELDS

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

    from bringup.compile.program.functional import Functional

Tensors = Mapping[str, "Tensor"]
Body = Callable[[Tensors, Tensors, "tuple[Tensor, ...]", "tuple[Tensor, ...]"], "Sequence[Tensor]"]


def value_name(index: int) -> str:
    """The name of the state for a function's value of that index, relative to the call's prefix."""
    return f"value.{index}"


def traced(
    body: Body,
    weights: Mapping[str, TensorSpec],
    states: Mapping[str, TensorSpec],
    values: Sequence[TensorSpec],
    step: Sequence[TensorSpec],
    max_blocks: int,
) -> ExportedProgram:
    """Exports a body with the arguments of a `program.Function`. Operations have the source lines of their origin."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.export import Dim, export
    from torch.fx import traceback
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Body(torch.nn.Module):
        def forward(self, weights: Tensors, states: Tensors, values: Any, step: Any) -> tuple[Tensor, ...]:
            return tuple(body(weights, states, values, step))

    def fake(spec: TensorSpec) -> Tensor:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))

    blocks = {1: Dim("P", min=1, max=max_blocks)} if max_blocks > 1 else None
    shapes = (
        {n: None for n in weights},
        {n: None for n in states},
        (None,) * len(values),
        tuple(blocks if name == "block_table" else None for name in FIELDS),
    )
    with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad(), traceback.preserve_node_meta():
        args = (
            {name: fake(spec) for name, spec in weights.items()},
            {name: fake(spec) for name, spec in states.items()},
            tuple(map(fake, values)),
            tuple(map(fake, step)),
        )
        return export(Body(), args, dynamic_shapes=shapes, strict=False)


def user_inputs(exported: ExportedProgram | Functional) -> list[Any]:
    """The placeholder nodes of a function's arguments, in order."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    return [nodes[name] for name in exported.graph_signature.user_inputs]


def spec_of(node: Any) -> TensorSpec:
    """Shape and dtype of a node's result; a symbolic size (the number of cache blocks) is 2."""
    value = node.meta["val"]
    shape = tuple(size if isinstance(size, int) else 2 for size in value.shape)
    return TensorSpec(name=node.name, shape=shape, dtype=str(value.dtype).removeprefix("torch."))


class Signature:
    """The arguments of a function, as `TensorSpec`s."""

    def __init__(self, function: Function, exported: ExportedProgram, max_blocks: int) -> None:
        specs = [spec_of(node) for node in user_inputs(exported)]
        first, second = len(function.weights), len(function.weights) + len(function.states)
        self.weights = dict(zip(function.weights, specs[:first], strict=True))
        self.states = dict(zip(function.states, specs[first:second], strict=True))
        third = len(specs) - len(FIELDS)
        self.values, self.step = specs[second:third], specs[third:]
        at = FIELDS.index("block_table")
        blocks = self.step[at]
        self.step[at] = TensorSpec(name=blocks.name, shape=(blocks.shape[0], min(2, max_blocks)), dtype="int64")


def with_values_as_states(
    function: Function, exported: ExportedProgram, max_blocks: int, extra: Mapping[str, TensorSpec], body: Body
) -> tuple[Function, ExportedProgram]:
    """The function exported again, with `body` as its code; its values, and `extra`, are states."""
    taken = Signature(function, exported, max_blocks)
    given = {value_name(index): spec for index, spec in enumerate(taken.values)}
    states = {**taken.states, **given, **extra}

    def run(weights: Tensors, states: Tensors, _: tuple[Tensor, ...], step: tuple[Tensor, ...]) -> Sequence[Tensor]:
        own = {name: states[name] for name in (*taken.states, *extra)}
        return body(weights, own, tuple(states[name] for name in given), step)

    retraced = traced(run, taken.weights, states, (), taken.step, max_blocks)
    return function_of(function.name, function.weights, tuple(states), retraced), retraced


def program_of(
    parent: Program,
    entry: Entry,
    calls: Sequence[Call],
    functions: Mapping[str, tuple[Function, ExportedProgram]],
    states: Sequence[TensorSpec],
) -> Program:
    """A program with one entry, with the step of `entry` and weights of the parent."""
    whole = parent.interface
    used = {name for call in calls for name in call.bound(functions[call.function][0].weights)}
    alone = Entry(
        name=entry.name,
        num_tokens=entry.num_tokens,
        num_sequences=entry.num_sequences,
        decode=entry.decode,
        contiguous=entry.contiguous,
        proposals=entry.proposals,
        calls=tuple(calls),
        outputs={"logits": -1},
    )
    interface = replace(
        whole,
        functions=tuple(function for function, _ in functions.values()),
        entries=(alone,),
        weights=tuple(spec for spec in whole.weights if spec.name in used),
        states=tuple(StateSpec(name=spec.name, shape=spec.shape, dtype=spec.dtype) for spec in states),
        all_logits=True,
    )
    return Program(interface=interface, exported={name: exported for name, (_, exported) in functions.items()})


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in one float32 vector, so that an entry's single output contains them."""
    import torch

    return torch.cat([tensor.to(torch.float32).reshape(-1) for tensor in tensors])
