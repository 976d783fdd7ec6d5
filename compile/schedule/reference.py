# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Runs a schedule launch by launch in its planned memory, each operation with torch on the CPU.

It tests fusion and memory plan without any kernel. A group's results are written only after all its nodes have run, and
memory is filled with NaN (integers: -1) after its last reader has run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bringup.compile.program.bind_weights import check_weights
from bringup.compile.program.program import Interface
from bringup.compile.program.torch_arrays import to_numpy, to_tensor
from bringup.compile.program.torch_states import TorchStates
from bringup.compile.schedule.graph.op_graph import Buffer, View
from bringup.compile.schedule.liveness import GIVEN, Owner
from bringup.compile.schedule.reference_ops import run_node
from bringup.compile.schedule.schedule import EntrySchedule, Launch, Schedule
from bringup.graphs.core.step import FIELDS

POISON = 0xFF  # in every byte: NaN as a float of any width, -1 as an integer


class ReferenceExecutor(TorchStates):
    """The executor of a schedule; see `program.Executor`. Weights share memory with the arrays passed.

    Raises BU609 for weights that do not match the interface.
    """

    def __init__(self, schedule: Schedule, interface: Interface, weights: Mapping[str, np.ndarray]) -> None:
        check_weights(interface, weights)
        self._schedule, self._interface = schedule, interface
        self._weights = {spec.name: to_tensor(weights[spec.name]) for spec in interface.weights}
        super().__init__(interface)
        self._arena = torch.empty(schedule.nbytes, dtype=torch.uint8)
        self._ends = {name: _ends(schedule, name) for name in schedule.entries}

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the launches of one entry point; see `program.Executor.step`."""
        given = {name: torch.from_numpy(np.ascontiguousarray(step[name], dtype=np.int64)) for name in FIELDS}
        given["block_table"] = self._padded(given["block_table"])
        for spec in self._interface.entry(entry).inputs:
            given[spec.name] = to_tensor(np.ascontiguousarray(step[spec.name]))
        plan = self._schedule.entries[entry]
        self._arena.fill_(POISON)
        with torch.no_grad():
            for launch, ends in zip(self._schedule.launches(entry), self._ends[entry], strict=True):
                self._launch(plan, launch, given)
                self._poison(plan, launch, ends)
        return {name: to_numpy(self._memory(plan, owner).clone()) for name, owner in plan.outputs.items()}

    def _launch(self, plan: EntrySchedule, launch: Launch, given: Mapping[str, Tensor]) -> None:
        own: dict[str, Tensor] = {}

        def tensor_of(view: View) -> Tensor:
            buffer = launch.graph.buffers[view.buffer]
            found = own.get(view.buffer)
            whole = self._bound(plan, launch, buffer, given) if found is None else found
            part = whole.as_strided(view.shape, view.strides, whole.storage_offset() + view.offset)
            return part if buffer.kind in ("state", "weight") else part.contiguous()

        for node in launch.group.nodes:
            results = run_node(node, tensor_of)
            own.update((name, result.contiguous()) for name, result in zip(node.outputs, results, strict=True))
        for name in launch.group.outputs & launch.graph.planned:
            self._memory(plan, (launch.at, name)).copy_(own[name])

    def _bound(self, plan: EntrySchedule, launch: Launch, buffer: Buffer, given: Mapping[str, Tensor]) -> Tensor:
        """The tensor of a buffer that the group does not compute itself."""
        match buffer.kind:
            case "weight":
                return self._weights[launch.call.full_name(buffer.name)]
            case "state":
                return self._states[launch.call.full_name(buffer.name)]
            case "step":
                return given[buffer.name.removeprefix("step:")]
            case "value" | "temporary":
                owner = launch.call.values.get(buffer.name, (launch.at, buffer.name))
                return given[owner[1]] if owner[0] == GIVEN else self._memory(plan, owner)

    def _place(self, plan: EntrySchedule, owner: Owner) -> tuple[int, Buffer]:
        """The offset of a temporary in the arena, in bytes, and its buffer."""
        call = plan.calls[owner[0]]
        return call.places[owner[1]], self._schedule.graphs[call.function].buffers[owner[1]]

    def _memory(self, plan: EntrySchedule, owner: Owner) -> Tensor:
        offset, buffer = self._place(plan, owner)
        raw = self._arena[offset : offset + buffer.nbytes]
        return raw.view(getattr(torch, buffer.dtype)).view(buffer.shape)

    def _poison(self, plan: EntrySchedule, launch: Launch, ends: list[Owner]) -> None:
        """Fills temporaries after their last reader, unless results of the launch overwrote them."""
        planned = launch.group.outputs & launch.graph.planned
        alive = {self._place(plan, owner)[0] for name in planned if (owner := (launch.at, name)) not in ends}
        for offset, buffer in (self._place(plan, owner) for owner in ends):
            if offset not in alive:
                self._arena[offset : offset + buffer.nbytes] = POISON

    def _padded(self, table: Tensor) -> Tensor:
        """The block table [B, P], padded to the number of blocks of the longest sequence; padding is never read."""
        return torch.nn.functional.pad(table, (0, self._interface.max_blocks - table.shape[1]))


def _ends(schedule: Schedule, entry: str) -> list[list[Owner]]:
    """For each launch, the temporaries that are not read after it."""
    plan, launches = schedule.entries[entry], list(schedule.launches(entry))
    last: dict[Owner, int] = {}
    for number, launch in enumerate(launches):
        for name in launch.group.inputs | (launch.group.outputs & launch.graph.planned):
            if launch.graph.buffers[name].kind in ("temporary", "value"):
                last[launch.call.values.get(name, (launch.at, name))] = number
    ends: list[list[Owner]] = [[] for _ in launches]
    for owner, number in last.items():
        if owner[0] != GIVEN and owner not in plan.outputs.values():
            ends[number].append(owner)
    return ends
