"""LaunchRunner: runs the kernels of one launch in separate memory, under observers: results, traffic and findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bringup.compile.gpu.driver.arguments import packed
from bringup.compile.gpu.kernel_plan import KernelPlan
from bringup.compile.kernels.call import SCRATCH, KernelCall, Pointer
from bringup.compile.kernels.select.tensors import COUNTERS
from bringup.compile.ptx import Bytes, Device, Early, LastStore, Order, Races, Unwritten, program_of
from bringup.compile.ptx.assembly.errors import PtxError
from bringup.compile.ptx.watch.order import TWO_WRITERS

ROOM = 4096  # bytes around each buffer, for the red zones of the emulated device
OTHER = 1  # the seed of the second run


@dataclass(frozen=True, slots=True)
class Given:
    """A buffer of `nbytes` bytes that the calls of a launch point to.

    `content`: its bytes before the launch; None for a result, which is then uninitialised. Buffers with equal `place`
    share memory. `parts`: which of the equal parts of the content count as initialised; None for all. `changed`:
    whether the launch may store to it. `fixed`: which bytes no earlier launch of the step writes.
    """

    nbytes: int
    content: np.ndarray | None
    place: object
    parts: np.ndarray | None = None
    changed: bool = True
    fixed: np.ndarray | bool = False


@dataclass(slots=True)
class Seen:
    """Traffic and findings of the kernels of one launch.

    `read` and `written` are in bytes. `sectors`: 32-byte sectors of a request; `excess`: their ratio to the minimum.
    """

    read: int = 0
    written: int = 0
    sectors: float = 0.0
    excess: float = 0.0
    instructions: int = 0
    findings: list[str] = field(default_factory=list[str])


class LaunchRunner:
    """Runs launches of one bundle. `programs` has the PTX of each cubin, by the cubin's SHA-256."""

    def __init__(self, plan: KernelPlan, programs: Mapping[str, str]) -> None:
        self._plan, self._texts = plan, programs

    def watched(self, calls: Sequence[KernelCall], buffers: Mapping[str, Given]) -> tuple[Seen, dict[str, np.ndarray]]:
        """Runs the calls twice, and returns the bytes of each buffer after the first run.

        The first run has all observers, and asynchronous copies complete as late as possible. In the second, copies
        complete as early as possible, and blocks, and the warps of a block, run one after the other in a shuffled
        order. Different results are a finding.
        """
        seen = Seen()
        first = self._run(calls, buffers, seen, _everything, {"copies": "latest"})
        # One lane, fewer than a block has: no two blocks or warps execute in lockstep.
        settings = {"copies": "earliest", "seed": OTHER, "lanes": 1, "in_turns": True}
        second = self._run(calls, buffers, seen, lambda places: [Races()], settings)
        for name, found in first.items():
            if name in second and not np.array_equal(found, second[name]):
                seen.findings.append(f"`{name}` depends on the order of blocks or warps, or on when copies arrive")
        return seen, first

    def padded(self, calls: Sequence[KernelCall], buffers: Mapping[str, Given]) -> tuple[Seen, dict[str, np.ndarray]]:
        """Runs the calls once, under all observers, for a step with padding.

        Padding tokens may write the same row of a cache in any order, because no query reads it.
        """
        seen = Seen()
        found = self._run(calls, buffers, seen, _everything, {"copies": "latest"})
        seen.findings = [finding for finding in seen.findings if not finding.startswith(TWO_WRITERS)]
        return seen, found

    def origin(self, calls: Sequence[KernelCall], buffers: Mapping[str, Given], name: str, byte: int) -> str:
        """The instruction that stores byte `byte` of buffer `name`, as the end of a finding's text."""
        watched: list[LastStore] = []

        def observers(places: Mapping[str, int]) -> list[Any]:
            watched.append(LastStore(places[name] + byte))
            return watched[-1:]

        self._run(calls, buffers, Seen(), observers, {"copies": "latest"})
        found = [each.result() for each in watched]
        return next((f"; stored by {each}" for each in reversed(found) if each), "; no launch stores it")

    def _run(
        self,
        calls: Sequence[KernelCall],
        buffers: Mapping[str, Given],
        seen: Seen,
        observers: Callable[[Mapping[str, int]], list[Any]],
        settings: Mapping[str, Any],
    ) -> dict[str, np.ndarray]:
        scratch = max((call.scratch for call in calls), default=0)
        own = max((self._plan.global_scratch_of(call) for call in calls), default=0)
        sizes = [each.nbytes for each in buffers.values()]
        device = Device(sum(size + ROOM for size in [*sizes, scratch, own]) + (1 << 20))
        addresses = _placed(device, buffers)
        counters = device.alloc(scratch, SCRATCH)
        device.fill(counters, 0, min(scratch, COUNTERS))
        global_scratch = device.alloc(own, "global scratch") if own else 0
        unwritten, early = Unwritten(device), Early(device)
        unwritten.mark(counters, min(scratch, COUNTERS))
        for name, each in buffers.items():
            early.mark(addresses[name], each.fixed, each.nbytes)
            if each.content is not None:
                unwritten.mark(addresses[name], each.nbytes, each.parts)
        for call in calls:
            kernel = self._plan.kernels[call.kernel]
            bases = {**addresses, SCRATCH: counters}
            values = [
                bases[each.buffer] + each.offset if isinstance(each, Pointer) else each for each in call.arguments
            ]
            arguments = packed(kernel.types, [*values, global_scratch, 0])
            try:
                program = program_of(self._texts[kernel.digest])
                run = program.launch(
                    device,
                    call.grid,
                    arguments,
                    shared=kernel.shared,
                    watch=[*observers(addresses), unwritten, early],
                    **dict(settings),
                )
            except PtxError as fault:
                seen.findings.append(str(fault))
                return {}
            _note(run, seen, _constants(buffers))
            seen.findings += [each for each in program.early_reads if each not in seen.findings]
        left = np.flatnonzero(device.read(counters, np.uint8, (min(scratch, COUNTERS),)))
        if left.size:
            seen.findings.append(f"it leaves a nonzero counter: {SCRATCH} + {left[0]}")
        return {name: device.read(addresses[name], np.uint8, (each.nbytes,)) for name, each in buffers.items()}


def _placed(device: Device, buffers: Mapping[str, Given]) -> dict[str, int]:
    """Allocates the buffers and writes their content. Returns their addresses, by name."""
    places: dict[object, list[str]] = {}
    for name, each in buffers.items():
        places.setdefault(each.place, []).append(name)
    found: dict[str, int] = {}
    for names in places.values():
        address = device.alloc(max(buffers[name].nbytes for name in names), _name(names))
        for name in names:
            found[name] = address
            content = buffers[name].content
            if content is not None and content.size:
                device.write(address, content)
    return found


def _everything(places: Mapping[str, int]) -> list[Any]:
    return [Bytes(), Races(), Order()]


def _constants(buffers: Mapping[str, Given]) -> frozenset[str]:
    """The names of the allocations that the launch must not change."""
    places: dict[object, list[str]] = {}
    for name, each in buffers.items():
        places.setdefault(each.place, []).append(name)
    fixed = (names for names in places.values() if not any(buffers[name].changed for name in names))
    return frozenset(_name(names) for names in fixed)


def _name(names: Sequence[str]) -> str:
    """The name of an allocation, from the names of its buffers."""
    return " = ".join(names)


def _note(run: Any, seen: Seen, constants: frozenset[str]) -> None:
    """Adds the results of a run's observers to `seen`. `constants`: allocations that must not change."""
    seen.instructions += run.instructions
    if (traffic := getattr(run, "bytes", None)) is not None:
        seen.read += sum(each.read for each in traffic.buffers if each.name != SCRATCH)
        seen.written += sum(each.written for each in traffic.buffers if each.name != SCRATCH)
        seen.sectors = max(seen.sectors, traffic.sectors_per_request)
        seen.excess = max(seen.excess, traffic.sector_excess)
        for access in traffic.accesses:
            if access.store and access.buffer in constants:
                seen.findings.append(f"store to `{access.buffer}`, which the launch only reads: {access.instruction}")
    for race in getattr(run, "races", None) or ():
        if not race.harmless:
            seen.findings.append(str(race))
    seen.findings += map(str, getattr(run, "order", None) or ())
    for read in (*run.unwritten, *run.early):
        if str(read) not in seen.findings:
            seen.findings.append(str(read))
