# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The graph's own code, run by torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.planning.plan import Plan
from bringup.compile.job import Job
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


def set_buffer(module: Any, name: str, tensor: Tensor) -> None:
    """Replaces a buffer of a module or of one below it."""
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner)._buffers[leaf] = tensor
