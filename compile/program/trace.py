# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""nn.Module -> Program: each stage is traced once per bucket and once per distinct kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
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
from bringup.compile.program.function_of import function_of
from bringup.compile.program.merge_linears import merge_linears
from bringup.compile.program.physical import AS_DECLARED, Buffers, View
from bringup.compile.program.program import EntryPoint, Program, StateSpec, TensorSpec
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import State
from bringup.graphs.core.step import FIELDS, Step, step_shapes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.ops.lowering import INLINED, OpLowering, using

Run = Callable[..., Tensor | tuple[Tensor, ...]]


class Tracer:
    """Traces stages of a module, which may be on the meta device: nothing is computed.

    `states` are the buffers updated in place, each with its kind; paged ones have the context rounded up to BLOCK rows
    for each sequence, and at least one more for padding to go to. Other buffers are tables, fed like weights.
    `max_blocks` bounds P. `ops` says what becomes of calls of ops; of parameters that `buffers` hold, a stage reads
    views.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        states: Mapping[str, str],
        max_blocks: int,
        ops: OpLowering = INLINED,
        buffers: Buffers = AS_DECLARED,
    ) -> None:
        self.module, self.states, self.max_blocks = module, dict(states), max_blocks
        self.ops, self.views = ops, buffers.views
        parts = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        self.tensors = {name: tensor for each in parts for name, tensor in each if name not in self.views}
        for name, declared in buffers.declared.items():
            shape, dtype = declared.storage
            self.tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def __call__(self, stage: Stage) -> Traced[ExportedProgram]:
        prefix = f"{stage.path}." if stage.path else ""
        with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad(), using(self.ops):
            fakes = {
                name[len(prefix) :]: torch.empty(tensor.shape, dtype=tensor.dtype)
                for name, tensor in self.tensors.items()
                if name.startswith(prefix)
            }
            inputs = tuple(torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in stage.values)
            step = self._step(stage.point)
            pure = _Pure(self.module.get_submodule(stage.path), _PARTS[stage.part], stage.point)
            views = {name: (view.buffer[len(prefix) :], view) for name, view in self._views(prefix)}
            parts = {name: view.of(fakes[buffer]) for name, (buffer, view) in views.items()}
            with _Reads() as reads:
                pure(fakes | parts, {}, inputs, step)
            pure.views = {name: views[name] for name, part in parts.items() if id(part) in reads.seen}
            read = {buffer for buffer, _ in pure.views.values()}
            used = {name: tensor for name, tensor in fakes.items() if id(tensor) in reads.seen or name in read}
            states = {name: tensor for name, tensor in used.items() if prefix + name in self.states}
            weights = {name: tensor for name, tensor in used.items() if name not in states}
            blocks = {1: Dim("P", min=1, max=self.max_blocks)} if self.max_blocks > 1 else None
            shapes = (
                {name: None for name in weights},
                {name: None for name in states},
                tuple(None for _ in inputs),
                tuple(blocks if name == "block_table" else None for name in FIELDS),
            )
            exported = export(pure, (weights, states, inputs, step), dynamic_shapes=shapes, strict=False)
        merge_linears(exported)
        return Traced(function=function_of(stage.name, tuple(weights), tuple(states), exported), code=exported)

    def _views(self, prefix: str) -> Iterator[tuple[str, View]]:
        """The parameters below a prefix that are in buffers, without it. Raises BU131 for buffers elsewhere."""
        for name, view in self.views.items():
            if name.startswith(prefix):
                if not view.buffer.startswith(prefix):
                    said = f"the layout puts `{name}` into `{view.buffer}`, which is not in `{prefix.rstrip('.')}`"
                    raise fail("BU131", said, help="a layer's parameters go into buffers of the same layer")
                yield name[len(prefix) :], view

    def specs(self) -> tuple[list[TensorSpec], list[StateSpec]]:
        """The weights, tables among them, and the states."""
        weights: list[TensorSpec] = []
        states: list[StateSpec] = []
        for name, tensor in self.tensors.items():
            shape, dtype = tuple(tensor.shape), _dtype(tensor)
            if name in self.states:
                states.append(StateSpec(name=name, shape=shape, dtype=dtype, kind=self.states[name]))
            else:
                weights.append(TensorSpec(name=name, shape=shape, dtype=dtype))
        return weights, states

    def _step(self, point: EntryPoint) -> tuple[Tensor, ...]:
        """Fake tensors of one step; P is never 1, so that it stays symbolic."""
        shapes = step_shapes(point.num_tokens, point.num_sequences, min(2, self.max_blocks))
        return tuple(torch.empty(shape, dtype=torch.int64) for shape in shapes.values())


def tracer_of(graph: Graph, layout: Layout, ops: OpLowering = INLINED, buffers: Buffers = AS_DECLARED) -> Tracer:
    """A tracer of a graph's stages."""
    module = to_torch(graph, graph.dtype, layout.sizes)
    states = {name: leaf.kind(layout.sizes) for name, leaf in graph.leaves(State)}
    return Tracer(module, states=states, max_blocks=layout.max_blocks, ops=ops, buffers=buffers)


def export_graph(graph: Graph, layout: Layout, ops: OpLowering = INLINED, buffers: Buffers = AS_DECLARED) -> Program:
    """Every entry of a graph, traced here and now."""
    return _program(tracer_of(graph, layout, ops, buffers), layout)


def export_program(module: nn.Module, layout: Layout, *, states: Collection[str]) -> Program:
    """Traces every entry of a module with `prologue`, `layers` and `epilogue`. `states`, all paged: see `Tracer`."""
    return _program(Tracer(module, states=dict.fromkeys(states, "paged"), max_blocks=layout.max_blocks), layout)


def _program(tracer: Tracer, layout: Layout) -> Program:
    entries = [trace_entry(layout, point, tracer) for point in layout.entries]
    exported = {traced.function.name: traced.code for _, stages in entries for traced in stages}
    return Program(interface=interface_of(layout, entries, tracer.specs()), exported=exported)


class _Pure(nn.Module):
    """A part of a module as a pure function of (weights, states, values, step), for the steps of an entry point."""

    def __init__(self, owner: nn.Module, run: Run, point: EntryPoint) -> None:
        super().__init__()
        self.point = point
        self.hidden = (_Owner(owner, run),)  # in a tuple, no submodule: export sees no parameters but the arguments
        self.views: Mapping[str, tuple[str, View]] = {}  # parameters by name: the weight that holds each, and where

    def forward(
        self,
        weights: Mapping[str, Tensor],
        states: Mapping[str, Tensor],
        values: tuple[Tensor, ...],
        step: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        parts = {name: view.of(weights[buffer]) for name, (buffer, view) in self.views.items()}
        own = self.hidden[0].owned
        bound = {f"owner.{name}": tensor for name, tensor in {**weights, **states, **parts}.items() if name in own}
        out = functional_call(self.hidden[0], bound, (*values, self.step(step)))
        return out if isinstance(out, tuple) else (out,)

    def step(self, tensors: tuple[Tensor, ...]) -> Step:
        return Step(*tensors, decode=self.point.decode, contiguous=self.point.contiguous)


class _Owner(nn.Module):
    """Lets `functional_call`, which calls `forward`, reach any method of the module."""

    def __init__(self, owner: nn.Module, run: Run) -> None:
        super().__init__()
        self.owner, self.run = owner, run
        parts = owner.named_parameters(remove_duplicate=False), owner.named_buffers(remove_duplicate=False)
        self.owned = {name for each in parts for name, _ in each}

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
    """Logits [B, V] of each sequence's last token; for sequences that are padding, of some token before."""
    return module.epilogue(x_ND.index_select(0, step.starts[1:] - 1))


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
