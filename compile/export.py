# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""nn.Module -> Program: each stage is traced once per bucket and once per distinct kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from bringup.compile.program import Call, Entry, Function, Interface, Program, TensorSpec
from bringup.graphs.graph import Step
from bringup.graphs.ops.attention import BLOCK

DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """`buckets`: prefill lengths; `all_logits`: logits of every prefill row, not only the last."""

    buckets: Sequence[int] = (64, 128, 256, 512)
    max_seq: int
    all_logits: bool = False


class _Stage(nn.Module):
    """One step of an entry as a pure function of (weights, states, values, step)."""

    def __init__(self, owner: nn.Module, run: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.hidden = (
            _Owner(owner, run),
        )  # in a tuple: not a submodule, so export sees no parameters but the arguments

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

    def __init__(self, owner: nn.Module, run: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
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


class _Exporter:
    def __init__(self, module: nn.Module, states: Collection[str], options: ExportOptions) -> None:
        self.module, self.options = module, options
        self.tensors: dict[str, Tensor] = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        self.states = frozenset(states)
        self.max_blocks = -(-options.max_seq // BLOCK)
        self.functions: list[Function] = []
        self.exported: dict[str, ExportedProgram] = {}

    def step(self, num_tokens: int) -> Step:
        """Fake tensors of one step; P is never 1, so that it stays symbolic."""

        def ints(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int64)

        return Step(ints(num_tokens), ints(num_tokens), ints(num_tokens), ints(1, min(2, self.max_blocks)), ints(1))

    def trace(
        self,
        name: str,
        owner: nn.Module,
        prefix: str,
        run: Callable[..., Tensor | tuple[Tensor, ...]],
        values: Sequence[Tensor],
        num_tokens: int,
    ) -> tuple[Tensor, ...]:
        """Appends one Function; gives fake tensors shaped like its outputs."""
        with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
            fakes = {
                n[len(prefix) :]: torch.empty(t.shape, dtype=t.dtype)
                for n, t in self.tensors.items()
                if n.startswith(prefix)
            }
            inputs = tuple(torch.empty(v.shape, dtype=v.dtype) for v in values)
            step, stage = tuple(self.step(num_tokens)), _Stage(owner, run)
            with _Reads() as reads:
                outputs = stage(fakes, {}, inputs, step)
            used = {n: t for n, t in fakes.items() if id(t) in reads.seen}
            states = {n: t for n, t in used.items() if prefix + n in self.states}
            weights = {n: t for n, t in used.items() if n not in states}
            args = (weights, states, inputs, step)
            blocks = Dim("P", min=1, max=self.max_blocks) if self.max_blocks > 1 else None
            shapes = (
                {n: None for n in weights},
                {n: None for n in states},
                tuple(None for _ in inputs),
                (None, None, None, {1: blocks} if blocks else None, None),
            )
            self.exported[name] = export(stage, args, dynamic_shapes=shapes, strict=False)
        self.functions.append(Function(name=name, weights=tuple(weights), states=tuple(states)))
        return outputs

    def entry(self, name: str, num_tokens: int, kinds: Sequence[int]) -> Entry:
        paths = {id(module): path for path, module in self.module.named_modules()}
        values = self.trace(f"{name}.prologue", self.module, "", _prologue, (), num_tokens)
        calls = [Call(function=f"{name}.prologue", prefix="", inputs=())]
        shared, x = tuple(range(1, len(values))), 0
        layers: Any = self.module.layers
        seen: set[int] = set()
        for index, (layer, kind) in enumerate(zip(layers, kinds, strict=True)):
            prefix, function = f"{paths[id(layer)]}.", f"{name}.layer{kind}"
            if kind not in seen:
                self.trace(function, layer, prefix, _layer, values, num_tokens)
                seen.add(kind)
            calls.append(Call(function=function, prefix=prefix, inputs=(x, *shared)))
            x = len(values) + index
        last_only = num_tokens > 1 and not self.options.all_logits
        rows = _last_rows if last_only else _all_rows
        self.trace(f"{name}.epilogue", self.module, "", rows, values[:1], num_tokens)
        calls.append(Call(function=f"{name}.epilogue", prefix="", inputs=(x,)))
        return Entry(name=name, num_tokens=num_tokens, num_sequences=1, calls=tuple(calls))

    def specs(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        every = [
            TensorSpec(name=n, shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."))
            for n, t in self.tensors.items()
        ]
        return (
            tuple(s for s in every if s.name not in self.states),
            tuple(s for s in every if s.name in self.states),
        )


def _prologue(module: Any, step: Step) -> tuple[Tensor, ...]:
    return module.prologue(step)


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


def export_program(
    module: nn.Module, *, kinds: Sequence[int], states: Collection[str], options: ExportOptions
) -> Program:
    """Traces prefill_<T> for each bucket and decode (T = 1).

    `kinds`: one int a layer, equal ints for layers equal but for their weights. `states`: the buffers
    updated in place; each has `max_seq` rounded up to BLOCK rows, and at least one more for padding to go to.
    Other buffers are tables fed like weights. The module may be on the meta device: nothing is computed.
    """
    exporter = _Exporter(module, states, options)
    entries = [exporter.entry(f"prefill_{size}", size, kinds) for size in options.buckets]
    entries.append(exporter.entry(DECODE, 1, kinds))
    weights, state_specs = exporter.specs()
    interface = Interface(
        functions=tuple(exporter.functions),
        entries=tuple(entries),
        weights=weights,
        states=state_specs,
        max_blocks=exporter.max_blocks,
        all_logits=options.all_logits,
    )
    return Program(interface=interface, exported=exporter.exported)
