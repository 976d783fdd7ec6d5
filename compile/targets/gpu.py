"""The targets `cuda:…` and `rocm:…`: the launches of a schedule as kernels that are compiled ahead of time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.gpu.emulated import EMULATED
from bringup.compile.targets.schedule import (
    SCHEDULE_TARGET,
    ScheduleTarget,
    read_schedule,
    reference_executor,
    schedule_of,
    summary_of,
    write_schedule,
)
from bringup.compile.targets.target import Estimate, Options

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.cache.store import Store
    from bringup.compile.gpu.kernel_plan import Calls, KernelPlan, PlannedKernel
    from bringup.compile.gpu.sampling import Sampling
    from bringup.compile.kernels.call import Kernel, KernelCall
    from bringup.compile.kernels.compiled import Compiled
    from bringup.compile.program.program import Executor, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.schedule.schedule import Schedule
    from bringup.compile.targets.module_store import ModuleStore
    from bringup.spec import TensorInfo

CUDA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ROCM = ("gfx90a", "gfx942")
REFERENCE, EMULATE, GPU = "reference", "emulate", "gpu"
# A process that compiles kernels: resident memory with Triton 3.9.0 on x86-64 Linux. GPT-2 small needs 173 MB for the
# 23 kernels of sm_90; a fifth is added for other models.
TRITON = 210_000_000


class GpuTarget(ScheduleTarget):
    """A family's target for one architecture. A bundle has the schedule, its compiled kernels, and no compiler.

    Programs are traced as for `schedule`; groups without a single kernel are split. The cubins are for the driver, the
    PTX for the emulator, the schedule for both and for the reference.
    """

    phases = ("schedule", "ptx", "ttgir")
    runs_with = ()  # depends on the executor
    stages_of = SCHEDULE_TARGET

    def __init__(self, family: str, architecture: str) -> None:
        self.name = f"{family}:{architecture}"
        self.cuda = family == "cuda"
        self.activations = ("fp8",) if self.cuda else ()
        self.architecture = architecture
        self.requires = ("torch", "triton", "cuda-bindings") if self.cuda else ("torch", "triton")
        self.summary = f"Triton kernels, compiled ahead of time, for {'NVIDIA' if self.cuda else 'AMD'} GPUs"
        if not self.cuda:
            self.phases = ("schedule", "ttgir")

    @contextmanager
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> Generator[Callable[[], str]]:
        """A dump is that of `schedule`, with each function after the splits too."""
        from bringup.compile.gpu.kernel_plan import planned, write_plan
        from bringup.compile.gpu.sampling import sampling_of

        schedule, calls = self._launches(program, options, dump_dir)
        sampling = sampling_of(schedule, program.interface, self.architecture)
        threads = ThreadPoolExecutor(1)
        work = threads.submit(self._compiled, calls, sampling, store.store)

        def finish() -> str:
            compiled = work.result()
            write_schedule(schedule, folder)
            plan = planned(self.architecture, calls, compiled, sampling)
            write_plan(plan, compiled, folder)
            return f"{len(compiled)} kernels; {summary_of(schedule)}"

        try:
            yield finish
        finally:
            threads.shutdown(cancel_futures=True)

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        """`gpu` is the default. Raises BU614 without a GPU, BU615 for another GPU, BU616 for an outdated driver."""
        schedule = read_schedule(folder, interface)
        if device == REFERENCE:
            return reference_executor(schedule, interface, weights)
        from bringup.compile.gpu.executor import GpuExecutor
        from bringup.compile.gpu.kernel_plan import read_plan
        from bringup.compile.gpu.opening import count_launches, open_emulated, open_gpu
        from bringup.compile.gpu.sampling import check_calls
        from bringup.compile.gpu.sizes import device_bytes

        plan = read_plan(folder, schedule.graphs)
        check_calls(plan, schedule, interface)
        count = None
        if device == EMULATE:
            nbytes = device_bytes(plan, schedule, interface, weights)
            driver, emulated = open_emulated(plan, programs_of(folder, plan), nbytes)
            count = partial(count_launches, emulated)
        else:
            driver = open_gpu(plan)
        read = partial(binary_of, folder, self.architecture)
        return GpuExecutor(driver, plan, read, schedule, interface, weights, count)

    def emit(self, phase: str, program: EncodedProgram, options: Options, dump_dir: Path | None) -> bytes:
        """The schedule with the least time that its bytes need; or the PTX, or Triton's IR, of all kernels."""
        from bringup.compile.gpu.sampling import sampling_of
        from bringup.compile.schedule.floors import devices_of
        from bringup.compile.schedule.text import text_of

        schedule, calls = self._launches(program, options, dump_dir)
        if phase == "schedule":
            return text_of(schedule, program.interface, devices_of(self.architecture)).encode()
        compiled = self._compiled(calls, sampling_of(schedule, program.interface, self.architecture), None)
        return "\n".join(_section(kernel, each, phase) for kernel, each in compiled.items()).encode()

    def devices(self) -> Sequence[str]:
        return (GPU, EMULATE, REFERENCE) if self.architecture in EMULATED else (GPU, REFERENCE)

    def estimate(self, weights: Sequence[TensorInfo], options: Options) -> Estimate:
        """The memory of tracing, or of a process of Triton: they do not run at the same time."""
        found = super().estimate(weights, options)
        return replace(found, children=max(found.children, TRITON))

    def _launches(
        self, program: EncodedProgram, options: Options, dump_dir: Path | None
    ) -> tuple[Schedule, dict[str, tuple[tuple[KernelCall, ...], ...]]]:
        """The schedule, and by function the kernel calls of each group."""
        from bringup.compile.kernels.select.registry import calls_of, split

        schedule = schedule_of(program, options, dump_dir, lambda graph: split(graph, self.architecture))
        found: dict[str, tuple[tuple[KernelCall, ...], ...]] = {}
        for name, graph in schedule.graphs.items():
            calls = [calls_of(graph, group, self.architecture) for group in graph.groups]
            assert None not in calls, "every group is of operations that kernels take, once it is split"
            found[name] = tuple(each for each in calls if each is not None)
        return schedule, found

    def _compiled(self, calls: Calls, sampling: Sampling, store: Store | None) -> dict[Kernel, Compiled]:
        from bringup.compile.kernels.aot import compile_kernels

        kernels = [call.kernel for groups in calls.values() for group in groups for call in group]
        kernels += [call.kernel for drawing in sampling.values() for call in drawing.every_call()]
        return compile_kernels(kernels, self.architecture, store)


def binary_of(folder: Path, architecture: str, planned: PlannedKernel) -> bytes:
    """A cubin, or an hsaco, of a bundle. Raises ValueError for one that differs from its digest.

    And for an hsaco with other arguments than those in `kernels.json`.
    """
    from bringup.compile.gpu.code_checks import code_problems
    from bringup.compile.gpu.kernel_plan import files_of
    from bringup.compile.kernels.code_object import kernel_of

    file = files_of(architecture).binary(folder, planned.digest)
    found = file.read_bytes()
    if hashlib.sha256(found).hexdigest() != planned.digest:
        raise ValueError(f"`{file.name}` does not match the digest in its name")
    if file.suffix == ".hsaco":
        for problem in code_problems(planned, kernel_of(found), architecture):
            raise ValueError(f"`{file.name}`: {problem}")
    return found


def programs_of(folder: Path, plan: KernelPlan) -> dict[str, str]:
    """The PTX of a bundle's kernels, by digest of the cubin. Raises ValueError for one that differs from its digest."""
    from bringup.compile.gpu.kernel_plan import CUDA_FILES

    digests = {each.digest: each.ptx_digest for each in plan.kernels.values()}
    found: dict[str, str] = {}
    for digest, wanted in sorted(digests.items()):
        text = CUDA_FILES.text(folder, digest).read_bytes()
        if hashlib.sha256(text).hexdigest() != wanted:
            raise ValueError(f"`{digest}.ptx` does not match its digest in `kernels.json`")
        found[digest] = text.decode()
    return found


def _section(kernel: Kernel, compiled: Compiled, phase: str) -> str:
    """The text of one kernel, after a line with its name."""
    constants = ", ".join(f"{name}={value}" for name, value in kernel.constants if "\n" not in str(value))
    text = compiled.assembly if phase == "ptx" else compiled.ttgir
    return f"// {kernel.stem}({', '.join(kernel.types)}) {constants}\n{text}"


GPU_TARGETS = (*(GpuTarget("cuda", each) for each in CUDA), *(GpuTarget("rocm", each) for each in ROCM))
