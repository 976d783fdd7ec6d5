# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""From an nn.Module to a Program: each stage is traced once for each entry point and each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from bringup.compile.program.assemble import Stage, Traced, interface_of, trace_entry
from bringup.compile.program.export_options import Layout
from bringup.compile.program.function_of import check_certain, function_of, value_of
from bringup.compile.program.lean_tracing import compiled_when_called, lean_metas, source_lines, uncached
from bringup.compile.program.merge_linears import merge_linears
from bringup.compile.program.physical import AS_DECLARED, Buffers, View
from bringup.compile.program.program import EntryPoint, Program, StateSpec, TensorSpec, Value
from bringup.compile.program.record import as_exported, recorded
from bringup.compile.program.stage_methods import METHODS, with_loras
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import State
from bringup.graphs.core.step import FIELDS, Step, step_shapes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.ops.lowering import INLINED, OpLowering, using

if TYPE_CHECKING:
    from bringup.compile.program.stage_methods import Method


class Tracer:
    """Traces stages of a module, which may be on the meta device, because nothing is computed.

    `states` are the buffers that are updated in place, each with its kind. Paged ones have, for each sequence, the
    context rounded up to BLOCK rows, and at least one more row for padding. Other buffers are tables, bound like
    weights. `max_blocks` bounds P. `ops` defines how calls of ops are traced. A stage reads the parameters in `buffers`
    as views. `source_lines`: every node has the Python lines that created it, which takes a fifth of the time.
    `fixed_sizes`: P is `max_blocks`, and a stage is recorded (record.py) if possible, otherwise exported; with
    `source_lines` it is always exported, because a recorded graph has no lines.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        states: Mapping[str, str],
        max_blocks: int,
        ops: OpLowering = INLINED,
        buffers: Buffers = AS_DECLARED,
        source_lines: bool = True,
        fixed_sizes: bool = False,
    ) -> None:
        self.source_lines, self.fixed_sizes = source_lines, fixed_sizes and not source_lines
        self.module, self.states, self.max_blocks = module, dict(states), max_blocks
        self.ops, self.views = ops, buffers.views
        parts = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        self.tensors = {name: tensor for each in parts for name, tensor in each if name not in self.views}
        for name, declared in buffers.declared.items():
            shape, dtype = declared.storage
            self.tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def __call__(self, stage: Stage) -> Traced[ExportedProgram]:
        """Traces a stage. The code of a recorded stage is a `Recorded`, which has what readers of graphs need."""
        run = self._run(stage)
        with compiled_when_called() if self.fixed_sizes else nullcontext():
            code = (self._recorded(run) if self.fixed_sizes else None) or self._exported(run)
            merge_linears(code)
        function = function_of(stage.name, tuple(run.weights), tuple(run.states), code)
        kinds = [self.states[f"{stage.path}.{name}".lstrip(".")] for name in function.updates]
        check_certain(stage.point, function, kinds, code)
        return Traced(function=function, code=code)

    def _exported(self, run: _Run) -> ExportedProgram:
        blocks = {1: Dim("P", min=1, max=self.max_blocks)} if self.max_blocks > 1 else None
        shapes = (
            {name: None for name in run.weights},
            {name: None for name in run.states},
            tuple(None for _ in run.inputs),
            tuple(blocks if name == "block_table" else None for name in FIELDS),
        )
        with self._fakes():
            return export(run.pure, tree_map(_empty_like, run.arguments), dynamic_shapes=shapes, strict=False)

    def _recorded(self, run: _Run) -> Any:
        """The recorded stage; None if it must be exported, or torch.export must report why it cannot be traced."""
        try:
            with self._on_meta(), as_exported():
                return recorded(lambda: run.pure(*run.arguments), tree_leaves(run.arguments))
        except (RuntimeError, TypeError, ValueError):
            return None

    def prepare(self) -> None:
        """Does the imports of torch's first trace, which take a second, once before processes are forked."""
        if not self.fixed_sizes:
            import_module("torch.export._trace")
            with self._fakes():
                torch.empty(0)

    def results(self, stage: Stage) -> tuple[Value, ...]:
        """Shapes and dtypes of a stage's results, without tracing it. A symbolic size is -1."""
        return tuple(value_of(result) for result in self._run(stage).results)

    @contextmanager
    def _fakes(self) -> Generator[None]:
        """In the block, tensors are fake, and calls of ops are traced as `ops` defines."""
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        with uncached(), compiled_when_called():
            fakes = FakeTensorMode(shape_env=ShapeEnv())
            with fakes, torch.no_grad(), using(self.ops), source_lines(self.source_lines):
                yield

    @contextmanager
    def _on_meta(self) -> Generator[None]:
        """In the block, tensors are on the meta device, with fixed sizes."""
        lean = lean_metas() if self.fixed_sizes else nullcontext()  # symbolic sizes need torch's compiler anyway
        with lean, torch.device("meta"), torch.no_grad(), using(self.ops):
            yield

    def _run(self, stage: Stage) -> _Run:
        """Runs a stage to find the tensors that it reads.

        On torch's meta device, which takes a tenth of the time; with fake tensors if a stage uses operations that the
        meta device does not support, such as `.to("cpu")`.
        """
        try:
            with self._on_meta():
                return self._run_here(stage)
        except (RuntimeError, TypeError, ValueError):  # with fake tensors, a mistake of the stage is raised
            with self._fakes():
                return self._run_here(stage)

    def _run_here(self, stage: Stage) -> _Run:
        prefix = f"{stage.path}." if stage.path else ""
        fakes = {
            name[len(prefix) :]: torch.empty(tensor.shape, dtype=tensor.dtype)
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }
        inputs = tuple(torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in stage.values)
        step = self._step(stage.point)
        method = with_loras(METHODS[stage.part]) if stage.lora else METHODS[stage.part]
        pure = _Pure(self.module.get_submodule(stage.path), method, stage.point)
        views = {name: (view.buffer[len(prefix) :], view) for name, view in self._views(prefix)}
        parts = {name: view.of(fakes[buffer]) for name, (buffer, view) in views.items()}
        with _Reads() as reads:
            results = pure(fakes | parts, {}, inputs, step)
        pure.views = {name: views[name] for name, part in parts.items() if id(part) in reads.seen}
        read = {buffer for buffer, _ in pure.views.values()}
        used = {name: tensor for name, tensor in fakes.items() if id(tensor) in reads.seen or name in read}
        states = {name: tensor for name, tensor in used.items() if prefix + name in self.states}
        weights = {name: tensor for name, tensor in used.items() if name not in states}
        return _Run(pure, weights, states, inputs, step, results)

    def _views(self, prefix: str) -> Iterator[tuple[str, View]]:
        """The parameters below a prefix that are in buffers, by name without it. Raises BU131 for buffers outside."""
        for name, view in self.views.items():
            if name.startswith(prefix):
                if not view.buffer.startswith(prefix):
                    message = f"the layout puts `{name}` into `{view.buffer}`, which is not in `{prefix.rstrip('.')}`"
                    raise fail("BU131", message, help="put a layer's parameters into buffers of the same layer")
                yield name[len(prefix) :], view

    def specs(self) -> tuple[list[TensorSpec], list[StateSpec]]:
        """The weights, including tables, and the states with memory of their own."""
        weights: list[TensorSpec] = []
        states: list[StateSpec] = []
        for name, tensor in self.tensors.items():
            shape, dtype, kind = tuple(tensor.shape), _dtype(tensor), self.states.get(name)
            if kind is None:
                weights.append(TensorSpec(name=name, shape=shape, dtype=dtype))
            elif kind != "borrowed":
                states.append(StateSpec(name=name, shape=shape, dtype=dtype, kind=kind))
        return weights, states

    def _step(self, point: EntryPoint) -> tuple[Tensor, ...]:
        """Fake tensors of one step. A symbolic P is not 1, which torch.export would make constant."""
        sizes = point.num_tokens, point.num_sequences, self.max_blocks if self.fixed_sizes else min(2, self.max_blocks)
        return tuple(torch.empty(shape, dtype=torch.int64) for shape in step_shapes(*sizes).values())


def tracer_of(
    graph: Graph,
    layout: Layout,
    ops: OpLowering = INLINED,
    buffers: Buffers = AS_DECLARED,
    *,
    source_lines: bool = True,
    fixed_sizes: bool = False,
) -> Tracer:
    """A tracer of a graph's stages; the arguments are those of `Tracer`."""
    module = to_torch(graph, graph.dtype, layout.sizes)
    states = {name: leaf.kind(layout.sizes) for name, leaf in graph.leaves(State)}
    return Tracer(
        module, states=states, max_blocks=layout.max_blocks, ops=ops, buffers=buffers, source_lines=source_lines,
        fixed_sizes=fixed_sizes,
    )  # fmt: skip


def export_graph(graph: Graph, layout: Layout, ops: OpLowering = INLINED, buffers: Buffers = AS_DECLARED) -> Program:
    """The program of a graph, traced without the cache."""
    return program_of(tracer_of(graph, layout, ops, buffers), layout)


def program_of(tracer: Tracer, layout: Layout) -> Program:
    """The program of the module of a tracer, traced without the cache."""
    entries = [trace_entry(layout, point, tracer) for point in layout.entries]
    exported = {traced.function.name: traced.code for _, stages in entries for traced in stages}
    return Program(interface=interface_of(layout, entries, tracer.specs()), exported=exported)


class _Run(NamedTuple):
    """A stage that has run: the arguments that it reads, and its results."""

    pure: _Pure
    weights: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...]
    step: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.weights, self.states, self.inputs, self.step


class _Pure(nn.Module):
    """A part of a module as a pure function of (weights, states, values, step), for the steps of an entry point."""

    def __init__(self, owner: nn.Module, run: Method, point: EntryPoint) -> None:
        super().__init__()
        self.point = point
        self.hidden = (
            _Owner(owner, run),
        )  # a tuple hides the submodule: only the arguments are parameters of an export
        self.views: Mapping[str, tuple[str, View]] = {}  # by parameter: the weight that contains it, and its region

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
        point = self.point
        return Step(*tensors, decode=point.decode, contiguous=point.contiguous, proposals=point.proposals)


class _Owner(nn.Module):
    """A module whose `forward` calls any function of `owner`, for `functional_call`."""

    def __init__(self, owner: nn.Module, run: Method) -> None:
        super().__init__()
        self.owner, self.run = owner, run
        parts = owner.named_parameters(remove_duplicate=False), owner.named_buffers(remove_duplicate=False)
        self.owned = {name for each in parts for name, _ in each}

    def forward(self, *values: Tensor | Step) -> Tensor | tuple[Tensor, ...]:
        return self.run(self.owner, *values)


class _Reads(TorchFunctionMode):
    """Collects the ids of the tensors that a stage reads."""

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


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
