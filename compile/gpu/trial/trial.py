"""Trial: runs a bundle's entry points with the reference executor, and each launch with its kernels as well."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.gpu.kernel_plan import KernelPlan
from bringup.compile.gpu.sampling import last_launch
from bringup.compile.gpu.trial.compare import departure
from bringup.compile.gpu.trial.drawn import buffers_of, calls_of, draws_of, wrong
from bringup.compile.gpu.trial.drawn import cost_of as cost_of_draws
from bringup.compile.gpu.trial.launches import Given, LaunchRunner, Seen
from bringup.compile.gpu.trial.steps import TrialStep, rows_of_step, trial_steps
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.select.sampling import LOGITS, Drawing
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import Interface
from bringup.compile.program.torch_arrays import to_numpy
from bringup.compile.schedule.costs import Cost, cost_of
from bringup.compile.schedule.graph.op_graph import Buffer, Group, OpGraph
from bringup.compile.schedule.graph.roles import Role, role_of
from bringup.compile.schedule.liveness import GIVEN
from bringup.compile.schedule.reference import ReferenceExecutor
from bringup.compile.schedule.schedule import EntrySchedule, Launch, Schedule
from bringup.graphs.core.step import BLOCK

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Row:
    """One launch of an entry point, and the number of equal ones. `cost` is the schedule's estimate."""

    entry: str
    kernels: str
    group: str
    cost: Cost
    launches: int = 0
    seen: Seen = field(default_factory=Seen)
    error: float = 0.0


class Trial(ReferenceExecutor):
    """A reference executor that runs each distinct launch of a step a second time, with its kernels."""

    def __init__(
        self,
        plan: KernelPlan,
        programs: Mapping[str, str],
        schedule: Schedule,
        interface: Interface,
        weights: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(schedule, interface, weights)
        self._kernels, self._runner = plan, LaunchRunner(plan, programs)
        self._step: TrialStep | None = None
        self._before: dict[str, np.ndarray] = {}  # the states before the step
        self._rows: dict[tuple[str, str, int], Row] = {}
        self._drawn: dict[str, Row] = {}
        self._head: dict[str, Given] = {}  # the buffers of the step's last launch, if it has calls for sampling
        self._done: set[tuple[str, str, int]] = set()

    def rows(
        self, vocabulary: int, say: Callable[[str], None] = lambda name: None, names: Collection[str] = ()
    ) -> list[Row]:
        """Runs all test steps, or those of the entry points `names`. Returns a row for each distinct launch.

        `say` is called with each entry point's name.
        """
        for step in trial_steps(self._interface, vocabulary, self, names):
            say(step.entry.name)
            self._step, self._done, self._before, self._head = step, set(), self.states(), {}
            results = self.step(step.entry.name, step.arrays)
            if drawing := self._kernels.sampling.get(step.entry.name):
                self._draw(step, drawing, results[LOGITS])
            self._step = None
        for name in self._schedule.entries:
            for launch in self._schedule.launches(name):
                if (row := self._rows.get((name, launch.graph.name, _number(launch)))) is not None:
                    row.launches += 1
        return [*self._rows.values(), *self._drawn.values()]

    def _draw(self, step: TrialStep, drawing: Drawing, logits: np.ndarray) -> None:
        """Runs the calls that sample tokens, on the reference's logits [B, V] or on those that they compute."""
        name, fields = step.entry.name, step.arrays
        row = self._drawn.get(name)
        draws = draws_of(step.sequences, 0 if row is None else 1)
        head, (_, computed) = last_launch(self._schedule, name), self._schedule.entries[name].outputs[LOGITS]
        calls = calls_of(drawing)
        buffers = buffers_of(logits, fields, draws, self._interface.max_blocks, self._head, computed)
        seen, found = self._runner.watched(calls, buffers)
        if row is None:
            stems = " ".join(call.kernel.stem for call in calls)
            cost = cost_of_draws(logits, fields, draws, drawing)
            if drawing.last:
                cost += cost_of(head.graph, head.group, step.keys)
            row = self._drawn[name] = Row(name, stems, "sampling", cost, 1, seen)
        if found:
            own = found[LOGITS].view(logits.dtype).reshape(logits.shape)
            off = departure(*(step.real(head.graph.buffers[computed], each) for each in (own, logits)))
            row.error = max(row.error, off.error)
            seen.findings += [off.describe(LOGITS)] if off.element is not None else []
            seen.findings += wrong(own, fields, draws, found)
        row.seen.findings += [finding for finding in seen.findings if finding not in row.seen.findings]

    def _launch(self, plan: EntrySchedule, launch: Launch, given: Mapping[str, Tensor]) -> None:
        key = plan.name, launch.graph.name, _number(launch)
        drawing = self._kernels.sampling.get(plan.name)
        if self._step is not None and drawing and (launch.at, launch.group) == _last(plan, launch.graph):
            self._head = {name: self._given(plan, launch, name, given) for name in _names(drawing.last)}
        if self._step is None or key in self._done:
            super()._launch(plan, launch, given)
            return
        self._done.add(key)
        calls = self._kernels.calls[launch.graph.name][_number(launch)]
        buffers = {name: self._given(plan, launch, name, given) for name in _names(calls)}
        super()._launch(plan, launch, given)
        seen, found = (self._runner.padded if self._step.padded else self._runner.watched)(calls, buffers)
        row = self._row(key, launch, calls, seen)
        for name in sorted(launch.group.outputs & launch.graph.planned | launch.group.updates):
            buffer = launch.graph.buffers[name]
            wanted = to_numpy(self._bound(plan, launch, buffer, given))
            if name in found:
                off = departure(
                    *(self._step.real(buffer, each) for each in (found[name].view(dtype_of(buffer.dtype)), wanted))
                )
                row.error = max(row.error, off.error)
                if off.element is not None:
                    byte = off.element * dtype_of(buffer.dtype).itemsize
                    padded = ", in a step with padding" if self._step.padded else ""
                    origin = self._runner.origin(calls, buffers, name, byte)
                    row.seen.findings.append(off.describe(name) + padded + origin)
            elif not seen.findings:
                row.seen.findings.append(f"no kernel writes `{name}`")

    def _row(self, key: tuple[str, str, int], launch: Launch, calls: Sequence[KernelCall], seen: Seen) -> Row:
        """The row of a launch, with the counts of its first step and the findings of all steps."""
        row = self._rows.get(key)
        if row is None:
            assert self._step is not None
            stems = " ".join(call.kernel.stem for call in calls)
            cost = cost_of(launch.graph, launch.group, self._step.keys)
            row = self._rows[key] = Row(key[0], stems, launch.group.name, cost, seen=seen)
        else:
            row.seen.findings += [finding for finding in seen.findings if finding not in row.seen.findings]
        return row

    def _given(self, plan: EntrySchedule, launch: Launch, name: str, given: Mapping[str, Tensor]) -> Given:
        buffer = launch.graph.buffers[name]
        owner = launch.call.values.get(name, (launch.at, name))
        planned = buffer.kind in ("value", "temporary") and owner[0] != GIVEN
        place: object = ("arena", self._place(plan, owner)[0]) if planned else name
        if name in launch.group.outputs:
            return Given(buffer.nbytes, None, place)
        changed = name in launch.group.updates
        content = bytes_of(to_numpy(self._bound(plan, launch, buffer, given)))
        return Given(
            buffer.nbytes,
            content.copy(),
            place,
            self._known_rows(launch, buffer),
            changed,
            self._fixed(launch, buffer, content),
        )

    def _fixed(self, launch: Launch, buffer: Buffer, content: np.ndarray) -> np.ndarray | bool:
        """The bytes that no earlier launch of the step writes: weights, fields, and unchanged bytes of states."""
        if buffer.kind == "state":
            before = self._before[launch.call.full_name(buffer.name)]
            return bytes_of(before) == content
        return buffer.kind in ("weight", "step")

    def _known_rows(self, launch: Launch, buffer: Buffer) -> np.ndarray | None:
        """For a paged cache that attention reads: the rows of the step's sequences and of the padding block."""
        assert self._step is not None
        reads = any(role_of(node) is Role.ATTENTION for node in launch.group.nodes)
        if buffer.kind != "state" or not reads or buffer.shape[0] != self._interface.num_blocks * BLOCK:
            return None
        return rows_of_step(self._step.arrays, self._interface.num_blocks)


def _names(calls: Sequence[KernelCall]) -> list[str]:
    """The buffers that calls point to, except the scratch memory."""
    pointers = (each for call in calls for each in call.arguments if isinstance(each, Pointer))
    return list(dict.fromkeys(pointer.buffer for pointer in pointers if pointer.buffer != SCRATCH))


def _last(plan: EntrySchedule, graph: OpGraph) -> tuple[int, Group]:
    """The call and the group of the last launch of an entry point, whose last function is `graph`."""
    return len(plan.calls) - 1, graph.groups[-1]


def _number(launch: Launch) -> int:
    """The index of a launch's group in its function."""
    return next(number for number, group in enumerate(launch.graph.groups) if group is launch.group)
