# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The graph's own code run by torch, module by module, beside a reference's activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import Job
from bringup.compile.parity.reference import INPUT
from bringup.compile.program.step_inputs import slots_for
from bringup.compile.targets.torch_executor import to_tensor
from bringup.graphs.core.graph import Step
from bringup.graphs.core.to_torch import to_torch


class Eager:
    """The job's graph with its weights and zeroed states; takes the steps of a session one after the other."""

    def __init__(self, job: Job, context: int) -> None:
        self.module: Any = to_torch(job.graph, job.graph.dtype, positions=context, slots=slots_for(context))
        self.inputs, self.dtype = tuple(job.graph.inputs), getattr(torch, job.graph.dtype)
        for name, array in materialise(job.plan, job.checkpoint).items():
            owner, _, leaf = name.rpartition(".")
            parameter = torch.nn.Parameter(to_tensor(array), requires_grad=False)
            self.module.get_submodule(owner)._parameters[leaf] = parameter
        self.states = [name for name, buffer in self.module.named_buffers() if buffer.is_meta]
        for name in self.states:
            owner, _, leaf = name.rpartition(".")
            buffer = self.module.get_buffer(name)
            self.module.get_submodule(owner)._buffers[leaf] = torch.zeros(buffer.shape, dtype=buffer.dtype)

    def __call__(self, step: Mapping[str, np.ndarray]) -> Tensor:
        """Logits of every row of a step, which holds what the model takes beside tokens as well."""
        fields = Step(*(torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in Step._fields))
        inputs = [to_tensor(np.ascontiguousarray(step[name])).to(self.dtype) for name in self.inputs]
        with torch.no_grad():
            x, *shared = self.module.prologue(fields, *inputs)
            for layer in self.module.layers:
                x = layer(x, *shared, fields)
            return self.module.epilogue(x)

    def reset(self) -> None:
        """Zeroes the states."""
        for name in self.states:
            self.module.get_buffer(name).zero_()

    def observe(self, step: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> tuple[list[Seen], Shapes]:
        """Each module of one step that the reference has too, in the order in which modules end.

        `theirs` is keyed as `record` does it: [count, …] for the step's tokens without padding. Also gives the shapes
        of the outputs that the reference has in another shape.
        """
        found: list[Seen] = []
        odd: Shapes = {}
        busy = False

        def watch(name: str) -> Any:
            def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
                nonlocal busy
                wanted = theirs.get(name)
                if busy or wanted is None:
                    return
                ours = _rows(output, len(wanted))
                if ours is None or ours[0].size != wanted[0].size:
                    odd[name] = () if ours is None else ours.shape
                    return
                taken, x = theirs.get(name + INPUT), _rows(args[:1], len(wanted))
                given = alone = None
                if taken is not None and x is not None and x.size == taken.size:
                    given = x.reshape(taken.shape)
                    busy = True
                    alone = _alone(module, args, taken).reshape(wanted.shape)
                    busy = False
                elif x is None and not any(_is_float(arg) for arg in args):
                    alone = ours.reshape(wanted.shape)  # of token ids, which are equal
                found.append(Seen(name, ours.reshape(wanted.shape), given, alone))

            return hook

        named = [(name, module) for name, module in self.module.named_modules() if name]
        hooks = [module.register_forward_hook(watch(name)) for name, module in named]
        try:
            self(step)
        finally:
            for hook in hooks:
                hook.remove()
        return found, odd


@dataclass(frozen=True, slots=True)
class Seen:
    """What a module took and gave, and what it gives for the reference's own input: float32 [count, …].

    `given` is None where the reference has no input of that size, `alone` too, but for a module of token ids.
    """

    name: str
    output: np.ndarray
    given: np.ndarray | None
    alone: np.ndarray | None


Shapes = dict[str, tuple[int, ...]]


def _alone(module: Any, args: tuple[Any, ...], taken: np.ndarray) -> np.ndarray:
    """The module's rows on the reference's input; what it keeps is put back as it was."""
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
    """The first of several tensors as float32, its first `count` rows; None when it is no float tensor of rows."""
    first = given[0] if isinstance(given, tuple) and given else given
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.ndim < 2 or len(first) < count:
        return None
    return first.detach()[:count].float().numpy()
