# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Runs a Program with torch: the reference for every other target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bringup.adapters.checkpoints.files import opened
from bringup.compile.program.bind_weights import check_weights
from bringup.compile.program.program import Function, Interface
from bringup.compile.program.torch_arrays import to_numpy, to_tensor
from bringup.compile.program.torch_states import TorchStates
from bringup.compile.targets.torch_archive import load_archive, save_archive
from bringup.graphs.core.step import FIELDS
from bringup.graphs.ops.fp8_linear import fp8_experts, fp8_linear
from bringup.graphs.ops.operator import operator_of
from bringup.graphs.ops.quant_linear import quant_experts, quant_linear
from bringup.system.gc_pause import gc_paused

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class TorchExecutor(TorchStates):
    """Executor of exported graphs; weights share memory with the passed arrays."""

    def __init__(
        self, exported: Mapping[str, ExportedProgram], interface: Interface, weights: Mapping[str, np.ndarray]
    ) -> None:
        check_weights(interface, weights)
        self._functions = {name: program.module() for name, program in exported.items()}
        self._interface = interface
        self._entries = {entry.name: entry for entry in interface.entries}
        self._metas = {function.name: function for function in interface.functions}
        self._weights = {spec.name: to_tensor(weights[spec.name]) for spec in interface.weights}
        super().__init__(interface)

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one entry; see `program.Executor`."""
        fields = tuple(torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in FIELDS)
        wanted = self._entries[entry]
        values = [to_tensor(np.ascontiguousarray(step[spec.name])) for spec in wanted.inputs]
        with torch.no_grad():
            for call in wanted.calls:
                function = self._metas[call.function]
                weights = dict(
                    zip(
                        function.weights,
                        (self._weights[n] for n in call.bound(function.weights)),
                        strict=True,
                    )
                )
                states = dict(zip(function.states, (self._states[n] for n in call.bound(function.states)), strict=True))
                values += self._functions[call.function](weights, states, tuple(values[i] for i in call.inputs), fields)
        return {name: to_numpy(values[index]) for name, index in wanted.outputs.items()}


def encode(function: Function, program: ExportedProgram) -> bytes:
    """A traced stage as the bytes of a `.pt2` file."""
    return save_archive(program)


def load_functions(folder: Path, interface: Interface) -> dict[str, ExportedProgram]:
    """Every function of a program, from the files `<function>.pt2` of `encode`."""
    for op in (quant_linear, quant_experts, fp8_linear, fp8_experts):
        operator_of(op)  # torch loads only programs whose operators it knows
    with gc_paused():
        return {function.name: _load(folder / f"{function.name}.pt2") for function in interface.functions}


def _load(path: Path) -> ExportedProgram:
    """Opens the file itself: torch's code for paths supports UTF-8 only. Raises ValueError for another format."""
    with opened(path) as file:
        if file.read(2) != b"PK":  # otherwise torch would print its tracebacks
            raise ValueError(f"`{path.name}` was not saved by torch.export")
        file.seek(0)
        return load_archive(file)
