"""LlvmExecutor: runs the entry points of a bundle on the CPU. Each entry point is a list of compiled launches."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from bringup.compile.kernels.call import Operand, Pointer
from bringup.compile.llvm.ir.threads import LAUNCH
from bringup.compile.llvm.module import Loaded
from bringup.compile.llvm.pool import ALIGNMENT, Pool, aligned, part_count
from bringup.compile.llvm.select.call import SHARED, Call
from bringup.compile.program.bind_weights import check_weights, dtype_of
from bringup.compile.program.program import Entry, Interface, TensorSpec
from bringup.compile.schedule.costs import bytes_by_buffer
from bringup.compile.schedule.liveness import GIVEN, Owner
from bringup.compile.schedule.schedule import Launch, Schedule
from bringup.graphs.core.step import FIELDS, step_shapes

Calls = Mapping[str, tuple[tuple[Call, ...], ...]]  # function -> calls of each of its groups


@dataclass(frozen=True, slots=True)
class Ready:
    """An entry point and its memory: the fields of a step, its launches, their arguments and its outputs.

    `launches` is [launches, LAUNCH] in uint64; `arguments` holds all kernel arguments, in 8-byte slots.
    """

    fields: Mapping[str, np.ndarray]
    launches: np.ndarray
    arguments: np.ndarray
    outputs: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Timed:
    """A call of a kernel for a launch, and its processor time in seconds."""

    launch: Launch
    call: Call
    seconds: float


class LlvmExecutor:
    """Executor of a schedule with compiled kernels; see `program.Executor`.

    Weights are used where they are mapped. A step copies its fields to their buffers, runs its launches without
    returning to Python, and copies the outputs.
    """

    def __init__(
        self,
        loaded: Loaded,
        calls: Calls,
        schedule: Schedule,
        interface: Interface,
        weights: Mapping[str, np.ndarray],
        threads: int,
    ) -> None:
        """Raises BU609 if the weights do not match the interface, LookupError if a kernel is missing."""
        check_weights(interface, weights)
        self._calls, self.schedule, self._interface = calls, schedule, interface
        every = [call for groups in calls.values() for group in groups for call in group]
        self._addresses = {kernel: loaded.address(kernel.name) for kernel in {call.kernel for call in every}}
        self._weights = {spec.name: np.ascontiguousarray(weights[spec.name]) for spec in interface.weights}
        self._states = _arrays(interface.states)
        self._arena, self._shared = (
            aligned(nbytes) for nbytes in (schedule.nbytes, max((call.shared for call in every), default=0))
        )
        self._entries: dict[str, Ready] = {}
        self._threads = threads
        self._pool = Pool(loaded, threads, max((call.scratch for call in every), default=0))

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the launches of one entry point; returns a copy of each output, by name."""
        ready = self._filled(entry, step)
        self._pool.run(ready.launches.ctypes.data, len(ready.launches))
        return {name: array.copy() for name, array in ready.outputs.items()}

    def timed_step(self, entry: str, step: Mapping[str, np.ndarray]) -> list[Timed]:
        """Like `step`, but runs and times one launch at a time: processor time of this thread, so use one thread.

        The cost of starting a launch is subtracted: the time of a run without launches.
        """
        ready = self._filled(entry, step)
        found: list[Timed] = []
        for (launch, call), row in zip(self._launches(entry), ready.launches, strict=True):
            before = time.thread_time()
            self._pool.run(row.ctypes.data, 0)
            start = time.thread_time()
            self._pool.run(row.ctypes.data, 1)
            found.append(Timed(launch, call, max(time.thread_time() - 2 * start + before, 0.0)))
        return found

    def reset(self) -> None:
        """Zeroes the states of sequences."""
        for spec in self._interface.sequence_states:
            self._states[spec.name].reshape(-1).view(np.uint8)[:] = 0

    def write_slot(self, state: str, slot: int, row: np.ndarray) -> None:
        """Overwrites row `slot` of a state; see `runtime.lora.slots.LoraExecutor`."""
        self._states[state][slot] = row

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        return {name: state.copy() for name, state in self._states.items()}

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the named states."""
        for name, array in arrays.items():
            self._states[name][...] = array

    def close(self) -> None:
        """Ends the threads. Can be called again; no step may follow."""
        self._pool.close()

    def _filled(self, entry: str, step: Mapping[str, np.ndarray]) -> Ready:
        """Returns an entry point after copying the fields of a step to its buffers."""
        ready = self._entries.get(entry)
        if ready is None:
            ready = self._entries[entry] = self._ready(self._interface.entry(entry))
        for name, field in ready.fields.items():
            given = np.asarray(step[name])
            if given.shape != field.shape:  # a block table has as many columns as the longest sequence has blocks
                field[...] = 0
            field[tuple(slice(size) for size in given.shape)] = given
        return ready

    # preparation, before the first step of an entry point

    def _ready(self, entry: Entry) -> Ready:
        interface = self._interface
        shapes = step_shapes(entry.num_tokens, entry.num_sequences, interface.max_blocks)
        specs = [*(TensorSpec(name=name, shape=shapes[name], dtype="int64") for name in FIELDS), *entry.inputs]
        fields = _arrays(specs)
        slots: list[bytes] = []
        found: list[tuple[int, int, int]] = []  # address of the kernel, index of its first slot, parts
        keys = interface.max_blocks * interface.block_size
        for launch, call in self._launches(entry.name):
            parts = part_count(_nbytes(launch, call, keys), self._threads)
            found.append((self._addresses[call.kernel], len(slots), parts))
            slots += [self._slot(launch, operand, entry.name, fields) for operand in call.arguments]
        arguments = np.frombuffer(bytearray(b"".join(slots)), np.uint64)
        launches = np.array([(kernel, arguments.ctypes.data + 8 * at, parts) for kernel, at, parts in found], np.uint64)
        plan = self.schedule.entries[entry.name]
        outputs = {name: self._output(entry.name, owner) for name, owner in plan.outputs.items()}
        return Ready(fields, launches.reshape(-1, LAUNCH), arguments, outputs)

    def _launches(self, entry: str) -> Iterator[tuple[Launch, Call]]:
        """Every call of an entry point, in order."""
        listed = (group for call in self.schedule.entries[entry].calls for group in self._calls[call.function])
        for launch, calls in zip(self.schedule.launches(entry), listed, strict=True):
            for call in calls:
                yield launch, call

    def _slot(self, launch: Launch, operand: Operand, entry: str, fields: Mapping[str, np.ndarray]) -> bytes:
        """The 8 bytes of a kernel argument: a float64, an int64 or an address."""
        if isinstance(operand, float):
            return struct.pack("=d", operand)
        if isinstance(operand, int):
            return struct.pack("=q", operand)
        if operand.buffer == SHARED:
            return struct.pack("=q", self._shared.ctypes.data + operand.offset)
        buffer = launch.graph.buffers[operand.buffer]
        match buffer.kind:
            case "weight":
                base = self._weights[launch.call.full_name(buffer.name)].ctypes.data
            case "state":
                base = self._states[launch.call.full_name(buffer.name)].ctypes.data
            case "step":
                base = fields[buffer.name.removeprefix("step:")].ctypes.data
            case "value" | "temporary":
                number, name = launch.call.values.get(buffer.name, (launch.at, buffer.name))
                if number == GIVEN:
                    base = fields[name].ctypes.data
                else:
                    base = self._arena.ctypes.data + self.schedule.entries[entry].calls[number].places[name]
        return struct.pack("=q", base + operand.offset)

    def _output(self, entry: str, owner: Owner) -> np.ndarray:
        """A view of an output in the arena, where the launches write it."""
        call = self.schedule.entries[entry].calls[owner[0]]
        buffer = self.schedule.graphs[call.function].buffers[owner[1]]
        raw = self._arena[call.places[owner[1]] :][: buffer.nbytes]
        return raw.view(dtype_of(buffer.dtype)).reshape(buffer.shape)


def _nbytes(launch: Launch, call: Call, keys: int) -> int:
    """Bytes that a call reads and writes if each sequence has `keys` keys, the capacity of a cache."""
    names = {operand.buffer for operand in call.arguments if isinstance(operand, Pointer)}
    moved = bytes_by_buffer(launch.graph, launch.group, keys)
    return call.shared + sum(nbytes for name, nbytes in moved.items() if name in names)


def _arrays(specs: Iterable[TensorSpec]) -> dict[str, np.ndarray]:
    """Zero-initialised arrays for tensors, by name, in one allocation."""
    specs = list(specs)
    sizes = [math.prod(spec.shape) * dtype_of(spec.dtype).itemsize for spec in specs]
    places = [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
    memory = aligned(places[-1])
    return {
        spec.name: memory[place : place + size].view(dtype_of(spec.dtype)).reshape(spec.shape)
        for spec, place, size in zip(specs, places, sizes, strict=False)
    }
