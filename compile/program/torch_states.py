"""The states of a program as torch tensors, for every executor that torch runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from bringup.compile.program.program import Interface
from bringup.compile.program.torch_arrays import to_numpy, to_tensor


class TorchStates:
    """Zeroed states by name: the part of `program.Executor` that owns states."""

    def __init__(self, interface: Interface) -> None:
        self._states = {s.name: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for s in interface.states}
        self._of_sequences = [self._states[s.name] for s in interface.sequence_states]

    def reset(self) -> None:
        """Zeroes the states of sequences."""
        for state in self._of_sequences:
            state.zero_()

    def write_slot(self, state: str, slot: int, row: np.ndarray) -> None:
        """Overwrites a row of a state; see `runtime.lora.slots.LoraExecutor`."""
        self._states[state][slot].copy_(to_tensor(np.ascontiguousarray(row)))

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        return {name: to_numpy(state.clone()) for name, state in self._states.items()}

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites states by name."""
        for name, array in arrays.items():
            self._states[name].copy_(to_tensor(np.ascontiguousarray(array)))
