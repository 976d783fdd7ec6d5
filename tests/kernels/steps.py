"""A complete step with the kernels of its launches, in the planned memory, on the emulator. No part runs in torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bringup.compile import ptx
from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH, KernelCall
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.program.program import Interface
from bringup.compile.runtime.session import load
from bringup.compile.schedule.liveness import GIVEN
from bringup.compile.schedule.reference import POISON
from bringup.compile.schedule.schedule import EntrySchedule, Launch, Schedule, scheduled
from bringup.spec import DTYPES
from tests.kernels.emulated import Emulated
from tests.kernels.graphs import NUMPY
from tests.schedule.models import schedule_of


class Kernels:
    """The kernels of a bundle of the target `schedule`, and its weights and states in the emulator's memory."""

    def __init__(self, bundle: Path, weights: Mapping[str, np.ndarray], capability: str) -> None:
        self.interface: Interface = load(bundle).interface
        graphs = {name: split(graph, capability) for name, graph in schedule_of(bundle).graphs.items()}
        self.schedule: Schedule = scheduled(self.interface, graphs)
        self.calls = {
            (name, number): calls_of(graph, group, capability) or ()
            for name, graph in graphs.items()
            for number, group in enumerate(graph.groups)
        }
        listed = [call for calls in self.calls.values() for call in calls]
        self.compiled = compile_kernels([call.kernel for call in listed], capability, default_store())
        buffers = {f"weight:{name}": np.ascontiguousarray(array) for name, array in weights.items()}
        for spec in self.interface.states:
            buffers[f"state:{spec.name}"] = np.zeros(DTYPES[spec.dtype].nbytes(spec.shape), np.uint8)
        buffers["arena"] = np.full(self.schedule.nbytes, POISON, np.uint8)
        self.machine = Emulated(buffers, max(call.scratch for call in listed))
        self.fixed = dict(self.machine.places)

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the launches of an entry point, and gives its outputs."""
        plan, device = self.schedule.entries[entry], self.machine.device
        table = step["block_table"]
        padded = np.pad(table, ((0, 0), (0, self.interface.max_blocks - table.shape[1])))
        given = {name: np.ascontiguousarray(array) for name, array in {**step, "block_table": padded}.items()}
        places = {name: device.put(array, name=name) for name, array in given.items()}
        groups = {name: list(graph.groups) for name, graph in self.schedule.graphs.items()}
        for launch in self.schedule.launches(entry):
            number = groups[launch.call.function].index(launch.group)
            names = launch.group.inputs | launch.group.outputs | launch.group.updates
            self.machine.places = {name: self._place(plan, launch, name, places) for name in names}
            self.machine.places[SCRATCH] = self.fixed[SCRATCH]
            for call in self.calls[launch.call.function, number]:
                self._launch(call)
        for address in places.values():
            device.free(address)
        return {name: self._output(plan, *owner) for name, owner in plan.outputs.items()}

    def _launch(self, call: KernelCall) -> None:
        """Without the observers that the tests of each kernel have: bounds and alignment are checked always."""
        compiled = self.compiled[call.kernel]
        program = ptx.program_of(compiled.assembly)
        given = zip(compiled.types, (*call.arguments, 0, 0), strict=True)
        arguments = [self.machine.packed(kind, value) for kind, value in given]
        program.launch(self.machine.device, call.grid, arguments, shared=compiled.shared)

    def _place(self, plan: EntrySchedule, launch: Launch, name: str, given: Mapping[str, int]) -> int:
        buffer = launch.graph.buffers[name]
        if buffer.kind in ("weight", "state"):
            return self.fixed[f"{buffer.kind}:{launch.call.full_name(name)}"]
        if buffer.kind == "step":
            return given[name.removeprefix("step:")]
        at, own = launch.call.values.get(name, (launch.at, name))
        if at == GIVEN:
            return given[own]
        return self.fixed["arena"] + plan.calls[at].places.get(own, 0)

    def _output(self, plan: EntrySchedule, at: int, name: str) -> np.ndarray:
        call = plan.calls[at]
        buffer = self.schedule.graphs[call.function].buffers[name]
        address = self.fixed["arena"] + call.places[name]
        return self.machine.device.read(address, NUMPY[buffer.dtype], buffer.shape)
