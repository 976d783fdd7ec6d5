"""The target `llvm`: the launches of a schedule as machine code, from LLVM IR that is emitted in Python."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.processor import processor
from bringup.compile.cache.text_digests import digest
from bringup.compile.targets.schedule import (
    OPAQUE,
    SCHEDULE_TARGET,
    ScheduleTarget,
    read_schedule,
    reference_executor,
    schedule_of,
    summary_of,
    write_schedule,
)
from bringup.compile.targets.target import TRACING, Estimate, Option, Options
from bringup.diagnostics import fail
from bringup.graphs.ops.latent_attention import absorbed
from bringup.system.processors import processors

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.llvm.executor import Calls
    from bringup.compile.llvm.ir.machine import Machine
    from bringup.compile.llvm.select.call import Call, Kernel
    from bringup.compile.program.program import Executor, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.schedule.graph.op_graph import Group, OpGraph
    from bringup.compile.schedule.schedule import Schedule
    from bringup.compile.targets.module_store import ModuleStore
    from bringup.spec import TensorInfo

REFERENCE, THREADS, MAPPED = "reference", "threads", "mapped"
DEVICE = re.compile(rf"(?:{THREADS}|{MAPPED})(?::([1-9][0-9]{{0,3}}))?")
# A launch is one operation, or a run of element-wise ones: between launches there is a barrier of threads, which takes
# less than a microsecond.
WHERE = "the CPU"
ELSEWHERE = "write it with other operations, or compile with `--target iree-cpu` or `--target torch`"
PASSES = "-fuse-rows,-fuse-epilogues,-fuse-experts,-fuse-rotary,-fuse-norms"


class LlvmTarget(ScheduleTarget):
    """A bundle has the schedule, and object files that need neither a C compiler nor a linker.

    On another processor, kernels are compiled when the bundle is opened: the schedule determines all of them.
    """

    name = "llvm"
    summary = "kernels as LLVM IR, compiled by llvmlite for the processor of this machine"
    requires = ("torch", "llvmlite")
    runs_with = ("llvmlite",)
    options = {  # noqa: RUF012  a Mapping of the protocol
        "cpu": Option(
            default="host",
            choices=("host", "generic"),
            help="the processor to compile for: host, or generic for every one of this kind",
        ),
    }
    phases = ("schedule", "llvm")
    stages_of = SCHEDULE_TARGET
    opaque = OPAQUE - {"latent_attention"}
    activations = ("int8",)
    implementations = {"latent_attention": absorbed}  # noqa: RUF012
    cache_dtypes = ("float32", "bfloat16", "float16")

    def check(self, graph: OpGraph) -> None:
        from bringup.compile.llvm.ir.machine import host
        from bringup.compile.llvm.select.registry import calls_of
        from bringup.compile.schedule.split import no_kernel

        for group in graph.groups:
            if calls_of(graph, group, host()) is None:
                raise no_kernel(graph, group.nodes[0], WHERE, help=ELSEWHERE)

    @contextmanager
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> Generator[Callable[[], str]]:
        """A dump is that of `schedule`, with each function after the splits too."""
        from bringup.compile.llvm.files import write_objects

        machine = _machine(options)
        schedule, calls = _launches(program, machine, dump_dir)
        threads = ThreadPoolExecutor(1)
        work = threads.submit(_objects, calls, machine, store)

        def finish() -> str:
            objects, count = work.result()
            write_schedule(schedule, folder)
            write_objects(folder, machine, objects)
            cached = "" if count else ", from the cache"
            return f"{sum(map(len, objects)) / 1e3:,.0f} kB of kernels{cached}; {summary_of(schedule)}"

        try:
            yield finish
        finally:
            threads.shutdown(cancel_futures=True)

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        schedule = read_schedule(folder, interface)
        if device == REFERENCE:
            return reference_executor(schedule, interface, weights)
        from bringup.compile.llvm.executor import LlvmExecutor
        from bringup.compile.llvm.files import read_description
        from bringup.compile.llvm.ir.machine import host
        from bringup.compile.llvm.module import Loaded

        written = read_description(folder)
        machine = written.machine if written.fit(host()) else host()
        calls = _calls(schedule, machine)
        objects = written.read(folder) if machine is written.machine else _objects(calls, machine, None)[0]
        threads = int((device or "").partition(":")[2] or processors())
        return LlvmExecutor(Loaded(objects, machine), calls, schedule, interface, weights, threads)

    def emit(self, phase: str, program: EncodedProgram, options: Options, dump_dir: Path | None) -> bytes:
        """The schedule, or the IR of all kernels before LLVM's passes."""
        from bringup.compile.schedule.text import text_of

        machine = _machine(options)
        schedule, calls = _launches(program, machine, dump_dir)
        if phase == "schedule":
            return text_of(schedule, program.interface).encode()
        from bringup.compile.llvm.module import texts_of, threads_text

        return "\n".join((*texts_of(_kernels(calls), machine), threads_text(machine))).encode()

    def cache_key(self, options: Options) -> Mapping[str, str]:
        """The processor is an input if kernels are compiled for the host's."""
        return {"processor": processor()} if options["cpu"] == "host" else {}

    def estimate(self, weights: Sequence[TensorInfo], options: Options) -> Estimate:
        """Measured as `target.TRACING`, with llvmlite 0.50: 533 MB, 308 MB in the forks that trace, 1,414 MB."""
        return replace(TRACING, tools=640_000_000, space=1_700_000_000)

    def devices(self) -> Sequence[str]:
        return (THREADS, MAPPED, REFERENCE)

    def check_device(self, name: str) -> None:
        """`threads:4` and `mapped:4` are executors with four threads. Raises BU018 for other numbers and names."""
        kind, separator, _ = name.partition(":")
        if separator and kind in (THREADS, MAPPED) and not DEVICE.fullmatch(name):
            help = f"write `{kind}:N`, with N from 1 to 9999, or `{kind}` for one thread for each processor"
            raise fail("BU018", f"the executor `{name}` has no valid number of threads", help=help)
        if not DEVICE.fullmatch(name):
            super().check_device(name)

    def reads_weights(self, device: str | None) -> bool:
        return (device or THREADS).startswith(THREADS)


LLVM = LlvmTarget()


def _machine(options: Options) -> Machine:
    from bringup.compile.llvm.ir.machine import generic, host

    return host() if options["cpu"] == "host" else generic()


def _launches(program: EncodedProgram, machine: Machine, dump_dir: Path | None) -> tuple[Schedule, Calls]:
    """The schedule, and by function the calls of each group. Raises BU504 for an operation without a kernel."""
    from bringup.compile.llvm.select.registry import calls_of
    from bringup.compile.schedule.split import split_groups

    def is_taken(graph: OpGraph, group: Group) -> bool:
        return calls_of(graph, group, machine) is not None

    schedule = schedule_of(program, {"passes": PASSES}, dump_dir, lambda graph: split_groups(graph, is_taken, WHERE))
    return schedule, _calls(schedule, machine)


def _calls(schedule: Schedule, machine: Machine) -> Calls:
    """Raises ValueError for a schedule with an operation without a kernel."""
    from bringup.compile.llvm.select.registry import calls_of

    found: dict[str, tuple[tuple[Call, ...], ...]] = {}
    for name, graph in schedule.graphs.items():
        calls = [calls_of(graph, group, machine) for group in graph.groups]
        if None in calls:
            group = graph.groups[calls.index(None)]
            raise ValueError(f"no CPU kernel for `{group.name}` of `{name}`")
        found[name] = tuple(each for each in calls if each is not None)
    return found


def _kernels(calls: Calls) -> list[Kernel]:
    return [call.kernel for groups in calls.values() for group in groups for call in group]


def _objects(calls: Calls, machine: Machine, store: ModuleStore | None) -> tuple[list[bytes], int]:
    """The object files of all kernels, from the cache if it has them; and the number of those that it did not have."""
    from bringup.compile.llvm.module import compiled, texts_of, threads_text

    start = time.perf_counter()
    found: list[bytes] = []
    count = 0
    texts = zip((*texts_of(_kernels(calls), machine), threads_text(machine)), (False, True, False), strict=True)
    for text, vectorise in texts:
        inputs = {"text": digest(text), "machine": f"{machine.cpu} {machine.attributes}", "vectorise": str(vectorise)}
        code = store.get(inputs) if store else None
        if code is None:
            code, count = compiled(text, machine, vectorise=vectorise), count + 1
            if store:
                store.put(inputs, code, what="kernels of the CPU", seconds=time.perf_counter() - start)
        found.append(code)
    return found, count
