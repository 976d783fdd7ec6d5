"""The compiled kernels of a task, run under all observers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.kernel_plan import KernelPlan, planned
from bringup.compile.gpu.trial.launches import Given, LaunchRunner, Seen
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select.registry import calls_of
from tests.kernels.tasks import TASKS
from tests.kernels.tasks.task import Task


@dataclass(frozen=True)
class Built:
    """A task's kernels for one architecture."""

    task: Task
    calls: tuple[KernelCall, ...]
    plan: KernelPlan
    compiled: Mapping[str, Compiled]  # by the digest of the plan

    @property
    def texts(self) -> dict[str, str]:
        return {digest: each.assembly for digest, each in self.compiled.items()}

    def run(self, texts: Mapping[str, str] | None = None) -> tuple[Seen, dict[str, np.ndarray]]:
        """Under all observers, twice; `texts`: the PTX by digest, where it is not the kernels' own."""
        runner = LaunchRunner(self.plan, texts or self.texts)
        return runner.watched(self.calls, buffers_of(self.task, self.calls))

    def run_once(self, texts: Mapping[str, str]) -> tuple[Seen, dict[str, np.ndarray]]:
        """The first of the two runs, which takes a tenth of the time, without its findings of two writers."""
        return LaunchRunner(self.plan, texts).padded(self.calls, buffers_of(self.task, self.calls))


def buffers_of(task: Task, calls: Sequence[KernelCall]) -> dict[str, Given]:
    """The buffers that calls point to, each with memory of its own."""
    group = task.graph.groups[0]
    names = {each.buffer for call in calls for each in call.arguments if isinstance(each, Pointer)} - {SCRATCH}
    found: dict[str, Given] = {}
    for name in sorted(names):
        buffer = task.graph.buffers[name]
        written = name in group.outputs
        content = None if written else np.ascontiguousarray(task.arrays[name]).reshape(-1).view(np.uint8)
        fixed = not written and buffer.kind in ("weight", "state", "step")
        found[name] = Given(buffer.nbytes, content, name, changed=written or name in group.updates, fixed=fixed)
    return found


def built(task: Task, capability: str) -> Built:
    calls = task.calls or calls_of(task.graph, task.graph.groups[0], capability)
    assert calls is not None
    compiled = compile_kernels([call.kernel for call in calls], capability, default_store())
    plan = planned(capability, {task.graph.name: (calls,)}, compiled)
    return Built(task, tuple(calls), plan, {plan.kernels[kernel].digest: each for kernel, each in compiled.items()})


@cache
def shipped(name: str, capability: str) -> Built:
    """A task of the table, compiled."""
    return built(TASKS[name](), capability)


def pairs() -> Iterator[tuple[str, str]]:
    for capability in ("sm_80", "sm_90"):
        for name in TASKS:
            if capability == "sm_90" or not any(word in name for word in ("panels", "specialised")):
                yield name, capability
