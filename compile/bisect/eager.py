# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The graph's own code, run by torch, and its modules on a reference's activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.planning.plan import Plan
from bringup.compile.job import Job
from bringup.compile.parity.reference import INPUT
from bringup.compile.program.step_inputs import sequence_step
from bringup.compile.program.torch_arrays import to_tensor
from bringup.graphs.core.step import FIELDS, CacheSizes, Step
from bringup.graphs.core.to_torch import to_torch


class Eager:
    """The job's graph with its weights and zeroed states; runs the steps of a session one after the other.

    Its caches, ring caches included, have the sizes of a program's. Without `sizes` they are those of one sequence of
    `context` tokens, and one step may have all of them. `plan` replaces the job's: that of a rank, for instance.
    """

    def __init__(self, job: Job, context: int, sizes: CacheSizes | None = None, plan: Plan | None = None) -> None:
        self.sizes = sizes or CacheSizes(context=context, chunk=context)
        self.module: Any = to_torch(job.graph, job.graph.dtype, self.sizes)
        self.inputs, self.dtype = tuple(job.graph.inputs), getattr(torch, job.graph.dtype)
        for name, array in materialise(plan or job.plan, job.checkpoint).items():
            owner, _, leaf = name.rpartition(".")
            parameter = torch.nn.Parameter(to_tensor(array), requires_grad=False)
            self.module.get_submodule(owner)._parameters[leaf] = parameter
        borrowed = job.graph.borrowed()
        self.states = list(job.graph.states())
        for name in self.states:
            buffer = self.module.get_buffer(name)
            set_buffer(self.module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
        for name, other in borrowed.items():
            set_buffer(self.module, name, self.module.get_buffer(other))

    def __call__(self, step: Mapping[str, np.ndarray], *, decode: bool = False) -> Tensor:
        """Logits [N, V] of every row of a step, which includes the model's inputs besides tokens.

        `decode` is that of `Step`.
        """
        tensors = [torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in FIELDS]
        fields = Step(*tensors, decode=decode)
        inputs = [to_tensor(np.ascontiguousarray(step[name])).to(self.dtype) for name in self.inputs]
        with torch.no_grad():
            values, count = self.module.prologue(fields, *inputs), self.module.carried
            carried, shared = values[:count], values[count:]
            for layer in self.module.layers:
                output = layer(*carried, *shared, fields)
                carried = output if isinstance(output, tuple) else (output,)
            return self.module.epilogue(*carried)

    def whole(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of a sequence from its start, float32 [T, V], in steps as long as the caches allow."""
        chunk, parts = self.sizes.chunk, list[np.ndarray]()
        for first in range(0, len(tokens), chunk):
            some = tokens[first : first + chunk]
            step = sequence_step(some, first, len(some), self.sizes.context, len(tokens))
            parts.append(self(step).float().numpy())
        return np.concatenate(parts)

    def reset(self) -> None:
        """Zeroes the states."""
        for name in self.states:
            self.module.get_buffer(name).zero_()

    def copy_of_states(self) -> dict[str, Tensor]:
        """A copy of the states, by name."""
        return {name: self.module.get_buffer(name).clone() for name in self.states}

    def restore(self, states: Mapping[str, Tensor]) -> None:
        """Restores states that `copy_of_states` returned."""
        for name, state in states.items():
            self.module.get_buffer(name).copy_(state)

    def observe(
        self, step: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], *, decode: bool = False
    ) -> tuple[list[Seen], Shapes]:
        """Each module of one step that the reference has too, in the order in which modules finish.

        `theirs` has the names of `record`: [count, …] for the step's tokens without padding. The second result has the
        shapes of the outputs that the reference has in another shape. The output of a layer with several results is
        the graph's `hidden_state`; that of any other module with several results is the first.
        """
        found: list[Seen] = []
        odd: Shapes = {}
        busy = False
        layers = {id(layer) for layer in self.module.layers}

        def watch(name: str) -> Any:
            def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
                nonlocal busy
                wanted = theirs.get(name)
                if busy or wanted is None:
                    return
                several = isinstance(output, tuple) and len(output) > 1
                if several and id(module) in layers:
                    output = self.module.hidden_state(*output)
                ours = _rows(output, len(wanted))
                if ours is None or ours[0].size != wanted[0].size:
                    odd[name] = () if ours is None else ours.shape
                    return
                taken, x = theirs.get(name + INPUT), _rows(args[:1], len(wanted))
                given = alone = None
                if several:
                    pass  # it is not known which of its inputs is the reference's input
                elif taken is not None and x is not None and x.size == taken.size:
                    given = x.reshape(taken.shape)
                    busy = True
                    alone = _alone(module, args, taken).reshape(wanted.shape)
                    busy = False
                elif x is None and not any(_is_float(arg) for arg in args):
                    alone = ours.reshape(wanted.shape)  # its input is token ids, which are equal
                found.append(Seen(name, ours.reshape(wanted.shape), given, alone))

            return hook

        named = [(name, module) for name, module in self.module.named_modules() if name]
        hooks = [module.register_forward_hook(watch(name)) for name, module in named]
        try:
            self(step, decode=decode)
        finally:
            for hook in hooks:
                hook.remove()
        return found, odd


def set_buffer(module: Any, name: str, tensor: Tensor) -> None:
    """Replaces a buffer of a module or of one below it."""
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner)._buffers[leaf] = tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """A module's input (`given`), output, and output for the reference's input (`alone`): float32 [count, …].

    `given` and `alone` are None if the reference has no input of that size, except `alone` of a module of token ids.
    """

    name: str
    output: np.ndarray
    given: np.ndarray | None
    alone: np.ndarray | None


Shapes = dict[str, tuple[int, ...]]


def _alone(module: Any, args: tuple[Any, ...], taken: np.ndarray) -> np.ndarray:
    """The module's output rows for the reference's input; its buffers are restored."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    x = args[0].clone()
    x[: len(taken)] = torch.from_numpy(taken.reshape(x[: len(taken)].shape)).to(x.dtype)
    rows = _rows(module.forward(x, *args[1:]), len(taken))
    for buffer, before in buffers:
        buffer.copy_(before)
    assert rows is not None, "it gave rows before"
    return rows


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _rows(given: Any, count: int) -> np.ndarray | None:
    """The first `count` rows, as float32, of a tensor or of the first of several; None for other tensors."""
    first = given[0] if isinstance(given, tuple) and given else given
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.ndim < 2 or len(first) < count:
        return None
    return first.detach()[:count].float().numpy()
