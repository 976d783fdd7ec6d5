# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Runs a Program by torch: the reference that every other target is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bringup.compile.program.bind_weights import check_weights, dtype_of
from bringup.compile.program.program import Function, Interface, bound
from bringup.graphs.core.graph import Step

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


class TorchExecutor:
    """Executor of exported graphs; weights share memory with the arrays given."""

    def __init__(
        self, exported: Mapping[str, ExportedProgram], interface: Interface, weights: Mapping[str, np.ndarray]
    ) -> None:
        check_weights(interface, weights)
        self._functions = {name: program.module() for name, program in exported.items()}
        self._interface = interface
        self._entries = {entry.name: entry for entry in interface.entries}
        self._metas = {function.name: function for function in interface.functions}
        self._weights = {spec.name: to_tensor(weights[spec.name]) for spec in interface.weights}
        self._states = {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in interface.states
        }

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one entry; see `program.Executor`."""
        fields = tuple(torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in Step._fields)
        wanted = self._entries[entry]
        values = [to_tensor(np.ascontiguousarray(step[spec.name])) for spec in wanted.inputs]
        with torch.no_grad():
            for call in wanted.calls:
                function = self._metas[call.function]
                weights = dict(
                    zip(
                        function.weights,
                        (self._weights[n] for n in bound(call, function.weights)),
                        strict=True,
                    )
                )
                states = dict(
                    zip(function.states, (self._states[n] for n in bound(call, function.states)), strict=True)
                )
                values += self._functions[call.function](weights, states, tuple(values[i] for i in call.inputs), fields)
        return {name: to_numpy(values[index]) for name, index in wanted.outputs.items()}

    def reset(self) -> None:
        """Zeroes the states."""
        for state in self._states.values():
            state.zero_()

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        return {name: to_numpy(state.clone()) for name, state in self._states.items()}

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states named."""
        for name, array in arrays.items():
            self._states[name].copy_(to_tensor(np.ascontiguousarray(array)))


def encode(function: Function, program: ExportedProgram) -> bytes:
    """A traced stage as the bytes of a `.pt2` file."""
    example_inputs, program.example_inputs = (
        program.example_inputs,
        None,
    )  # fake tensors: torch's safe loader refuses them
    file = BytesIO()
    torch.export.save(program, file)
    program.example_inputs = example_inputs
    return file.getvalue()


def load_functions(folder: Path, interface: Interface) -> dict[str, ExportedProgram]:
    """Every function of a program, from `<function>.pt2` as `encode` made it."""
    return {function.name: _load(folder / f"{function.name}.pt2") for function in interface.functions}


def _load(path: Path) -> ExportedProgram:
    """From an open file: torch hands paths to code that knows UTF-8 only."""
    with path.open("rb") as file:
        return torch.export.load(file)


def to_tensor(array: np.ndarray) -> Tensor:
    """A tensor over the same memory; numpy's bfloat16 and fp8 (ml_dtypes) become torch's."""
    name = array.dtype.name
    if array.dtype.isbuiltin == 1:  # 2: registered by ml_dtypes
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(getattr(torch, name))


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The reverse of `to_tensor`."""
    dtype = dtype_of(str(tensor.dtype).removeprefix("torch."))
    tensor = tensor.detach().contiguous()
    if dtype.isbuiltin == 1:
        return tensor.numpy()
    return tensor.view({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).numpy().view(dtype)
