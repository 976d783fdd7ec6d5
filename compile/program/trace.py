# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""nn.Module -> Program: each stage is traced once per bucket and once per distinct kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from bringup.compile.program.assemble import Part, Stage, Traced, interface_of, trace_entry
from bringup.compile.program.export_options import Layout
from bringup.compile.program.program import Function, Program, TensorSpec
from bringup.compile.program.step_inputs import slots_for
from bringup.graphs.core.graph import Graph, Step
from bringup.graphs.core.module import State
from bringup.graphs.core.to_torch import to_torch

Run = Callable[..., Tensor | tuple[Tensor, ...]]


class Tracer:
    """Traces stages of a module, which may be on the meta device: nothing is computed.

    `states` are the buffers updated in place; each has the context rounded up to BLOCK rows, and at least one more
    for padding to go to. Other buffers are tables, fed like weights. `max_blocks` bounds P.
    """

    def __init__(self, module: nn.Module, *, states: Collection[str], max_blocks: int) -> None:
        self.module, self.states, self.max_blocks = module, frozenset(states), max_blocks
        self.tensors: dict[str, Tensor] = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }

    def __call__(self, stage: Stage) -> Traced[ExportedProgram]:
        prefix = f"{stage.path}." if stage.path else ""
        with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
            fakes = {
                name[len(prefix) :]: torch.empty(tensor.shape, dtype=tensor.dtype)
                for name, tensor in self.tensors.items()
                if name.startswith(prefix)
            }
            inputs = tuple(torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in stage.values)
            step = tuple(self._step(stage.num_tokens))
            pure = _Pure(self.module.get_submodule(stage.path), _PARTS[stage.part])
            with _Reads() as reads:
                outputs = pure(fakes, {}, inputs, step)
            used = {name: tensor for name, tensor in fakes.items() if id(tensor) in reads.seen}
            states = {name: tensor for name, tensor in used.items() if prefix + name in self.states}
            weights = {name: tensor for name, tensor in used.items() if name not in states}
            blocks = {1: Dim("P", min=1, max=self.max_blocks)} if self.max_blocks > 1 else None
            shapes = (
                {name: None for name in weights},
                {name: None for name in states},
                tuple(None for _ in inputs),
                tuple(blocks if name == "block_table" else None for name in Step._fields),
            )
            exported = export(pure, (weights, states, inputs, step), dynamic_shapes=shapes, strict=False)
        return Traced(
            function=Function(name=stage.name, weights=tuple(weights), states=tuple(states)),
            outputs=tuple((tuple(out.shape), _dtype(out)) for out in outputs),
            code=exported,
        )

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The weights, tables among them, and the states."""
        every = [
            TensorSpec(name=name, shape=tuple(tensor.shape), dtype=_dtype(tensor))
            for name, tensor in self.tensors.items()
        ]
        return [s for s in every if s.name not in self.states], [s for s in every if s.name in self.states]

    def _step(self, num_tokens: int) -> Step:
        """Fake tensors of one step; P is never 1, so that it stays symbolic."""

        def ints(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int64)

        return Step(
            ints(num_tokens), ints(num_tokens), ints(num_tokens), ints(1, min(2, self.max_blocks)), ints(1), ints(1)
        )


def tracer_of(graph: Graph, layout: Layout) -> Tracer:
    """A tracer of a graph's stages."""
    module = to_torch(graph, graph.dtype, positions=layout.context, slots=slots_for(layout.context))
    return Tracer(module, states=[name for name, _ in graph.leaves(State)], max_blocks=layout.max_blocks)


def export_graph(graph: Graph, layout: Layout) -> Program:
    """Every entry of a graph, traced here and now."""
    return _program(tracer_of(graph, layout), layout)


def export_program(module: nn.Module, layout: Layout, *, states: Collection[str]) -> Program:
    """Traces every entry of a module with `prologue`, `layers` and `epilogue`. `states`: see `Tracer`."""
    return _program(Tracer(module, states=states, max_blocks=layout.max_blocks), layout)


def _program(tracer: Tracer, layout: Layout) -> Program:
    entries = [trace_entry(layout, name, num_tokens, tracer) for name, num_tokens in layout.entries]
    exported = {traced.function.name: traced.code for _, stages in entries for traced in stages}
    return Program(interface=interface_of(layout, entries, tracer.specs()), exported=exported)


class _Pure(nn.Module):
    """A part of a module as a pure function of (weights, states, values, step)."""

    def __init__(self, owner: nn.Module, run: Run) -> None:
        super().__init__()
        self.hidden = (_Owner(owner, run),)  # in a tuple, no submodule: export sees no parameters but the arguments

    def forward(
        self,
        weights: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        values: tuple[Tensor, ...],
        step: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        bound = {f"owner.{name}": tensor for name, tensor in {**weights, **states}.items()}
        out = functional_call(self.hidden[0], bound, (*values, Step(*step)))
        return out if isinstance(out, tuple) else (out,)


class _Owner(nn.Module):
    """Lets `functional_call`, which calls `forward`, reach any method of the module."""

    def __init__(self, owner: nn.Module, run: Run) -> None:
        super().__init__()
        self.owner, self.run = owner, run

    def forward(self, *values: Tensor | Step) -> Tensor | tuple[Tensor, ...]:
        return self.run(self.owner, *values)


class _Reads(TorchFunctionMode):
    """Collects which of the given tensors a stage reads."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.seen.update(id(leaf) for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor))
        return func(*args, **(kwargs or {}))


def _prologue(module: Any, *values: Tensor | Step) -> tuple[Tensor, ...]:
    *inputs, step = values
    return module.prologue(step, *inputs)


def _layer(layer: Any, *values: Tensor | Step) -> Tensor:
    return layer(*values)


def _last_rows(module: Any, x_ND: Tensor, step: Step) -> Tensor:
    """Logits [B, V] of each sequence's last token: row lengths[b] - 1 - positions[b * T] of its T rows."""
    num_sequences = step.lengths.shape[0]
    per_sequence = x_ND.shape[0] // num_sequences
    first = torch.arange(num_sequences) * per_sequence
    rows = first + step.lengths - 1 - step.positions[::per_sequence]
    return module.epilogue(x_ND.index_select(0, rows))


def _all_rows(module: Any, x_ND: Tensor, step: Step) -> Tensor:
    return module.epilogue(x_ND)


def _final(module: Any, x_ND: Tensor, step: Step) -> Tensor:
    return module.final(x_ND)


_PARTS: dict[Part, Run] = {
    "prologue": _prologue,
    "layer": _layer,
    "final": _final,
    "last_rows": _last_rows,
    "all_rows": _all_rows,
}


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
