"""GpuExecutor: runs the entry points of a bundle on a device, through CUDA, HIP or the emulated driver."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from bringup.compile.gpu.driver.arguments import packed
from bringup.compile.gpu.driver.driver import Address, Arguments, Driver, Function, Graph
from bringup.compile.gpu.kernel_plan import KernelPlan, PlannedKernel
from bringup.compile.gpu.profile import Profile
from bringup.compile.gpu.ready import Flight, Kind, Ready, Start
from bringup.compile.gpu.sampling import SLOTS, Draws
from bringup.compile.gpu.sizes import fields_of
from bringup.compile.gpu.staging import Staging
from bringup.compile.gpu.states import States
from bringup.compile.gpu.upload import upload
from bringup.compile.kernels.call import SCRATCH, KernelCall, Operand, Pointer
from bringup.compile.kernels.select.tensors import COUNTERS
from bringup.compile.program.bind_weights import check_weights, dtype_of
from bringup.compile.program.program import Draw, Entry, Interface
from bringup.compile.schedule.costs import cost_of
from bringup.compile.schedule.liveness import GIVEN
from bringup.compile.schedule.schedule import Launch, Schedule
from bringup.compile.schedule.text import keys_of

# Triton appends two pointers to the arguments of a kernel: global scratch memory, and that of its profiler (not used).
NO_PROFILER = 0


class GpuExecutor:
    """Executor of a schedule with compiled kernels; see `program.Executor`.

    Memory is allocated once. A step copies its fields to the device, starts its launches and copies its outputs to the
    host, all in one stream, and synchronises once. Decode is one graph from its second step on. In `draw` the kernels
    store tokens in host memory, and no logits are copied. A draw that continues copies no fields either, because the
    kernels have advanced them. With `ahead` it also starts the next step before it synchronises, so the device is never
    idle.
    """

    def __init__(
        self,
        driver: Driver,
        plan: KernelPlan,
        read: Callable[[PlannedKernel], bytes],
        schedule: Schedule,
        interface: Interface,
        weights: Mapping[str, np.ndarray],
        count: Callable[[Profile], None] | None = None,
    ) -> None:
        """`read` returns the binary of a kernel. `count` makes an emulator count the bytes of launches for a profile.

        `driver` is closed with the executor: by `close`, when the executor is garbage, and if this raises.
        Raises BU609 for weights of the wrong shape or dtype, BU617 and BU618.
        """
        self._driver = driver
        self._close = weakref.finalize(self, driver.close)
        with ExitStack() as failed, driver.current():
            failed.callback(self.close)
            check_weights(interface, weights)
            self._plan, self._schedule, self._interface = plan, schedule, interface
            self._profile: Profile | None = None
            self._count = count
            self._stream = driver.stream()
            self._functions = {each.kernel: self._function(each, read(each)) for each in plan.kernels.values()}
            given = {spec.name: weights[spec.name] for spec in interface.weights}
            self._weights = upload(driver, self._stream, given)
            self._states = States(driver, self._stream, interface.states)
            self._arena = driver.allocate(schedule.nbytes, "temporaries")
            self._scratch = driver.allocate(plan.scratch, SCRATCH)
            self._global_scratch = driver.allocate(plan.global_scratch, "global scratch")
            self._entries: dict[str, Ready] = {}
            self._clear_counters()
            self._states.zero(spec.name for spec in interface.states)
            failed.pop_all()

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs an entry point with the fields `step`. Returns its outputs. Synchronises once. BU617 after `close`."""
        with self._driver.current():
            ready = self._opened(entry)
            ready.staging.fill(step)
            self._run(ready, "logits")
            return {name: array.copy() for name, (array, _) in ready.outputs.items()}

    def can_draw(self, entry: str) -> bool:
        """See `program.TokenExecutor`."""
        return entry in self._plan.sampling

    def can_continue(self, entry: str, draws: Sequence[Draw]) -> bool:
        """See `program.TokenExecutor`."""
        ready = self._entries.get(entry)
        if ready is None or ready.draws is None or not ready.can_continue:
            return False
        return ready.ahead is None or ready.draws.are(draws)

    def draw(
        self, entry: str, step: Mapping[str, np.ndarray] | None, draws: Sequence[Draw], *, ahead: bool = False
    ) -> list[int]:
        """See `program.TokenExecutor`. Synchronises once. Raises BU617 after `close`."""
        with self._driver.current():
            ready = self._opened(entry)
            assert ready.draws is not None
            assert step is not None or self.can_continue(entry, draws)
            is_same = ready.draws.are(draws)
            flight = ready.ahead if step is None else None
            if flight is None:
                if step is not None:
                    ready.staging.fill(step)
                ready.draws.fill(draws)
                kind: Kind = "draw" if step is not None else "repeat" if is_same else "continue"
                self._run(ready, kind)
                slot = 0
            else:
                slot = flight.slot
            ready.can_continue, ready.ahead = True, None
            if ahead and self._profile is None:
                ready.ahead = self._started(ready, 1 - slot)
            if flight is not None:
                self._driver.wait_for(flight.done)
            return ready.draws.tokens(slot, len(draws))

    def start_profile(self) -> Profile:
        """Starts a profile: from now on every launch is measured, and steps are not graphs."""
        self._profile = Profile()
        if self._count:
            self._count(self._profile)
        return self._profile

    def reset(self) -> None:
        """Fills the states of sequences with zeros, also after a step that failed between two launches."""
        with self._driver.current():
            self._forget_ahead()
            self._clear_counters()
            self._states.zero(spec.name for spec in self._interface.sequence_states)

    def write_slot(self, state: str, slot: int, row: np.ndarray) -> None:
        """See `runtime.lora.slots.LoraExecutor`."""
        with self._driver.current():
            self._forget_ahead()
            self._states.write_row(state, slot, row)

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        with self._driver.current():
            return self._states.read()

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states in `arrays`, by name."""
        with self._driver.current():
            self._forget_ahead()
            self._states.write(arrays)

    def close(self) -> None:
        """Frees the device's memory. No step may follow; a second call has no effect."""
        self._close()

    def _run(self, ready: Ready, kind: Kind) -> None:
        """Runs one step, as a graph if there is one, and synchronises."""
        self._forget_ahead()
        ready.can_continue = False
        graph = ready.graphs.get((kind, 0))
        if graph is not None and self._profile is None:
            self._driver.replay(graph, self._stream)
        else:
            self._put(ready, kind, 0, self._profile)
        self._driver.wait(self._stream)
        if self._profile is not None:
            self._profile.finish(self._driver)
        elif graph is None and ready.entry.decode:
            self._captured(ready, kind, 0)

    def _clear_counters(self) -> None:
        """Fills the counters of scratch memory with zeros, as every completed step leaves them."""
        self._driver.zero(self._scratch, min(self._plan.scratch, COUNTERS), self._stream)

    def _forget_ahead(self) -> None:
        """Discards a step that was started ahead. The fields on the device have advanced, so no draw may continue."""
        for ready in self._entries.values():
            ready.can_continue = ready.can_continue and ready.ahead is None
            ready.ahead = None

    def _started(self, ready: Ready, slot: int) -> Flight:
        """Starts the step after the latest one, with the same sampling settings, without synchronising."""
        graph = ready.graphs.get(("repeat", slot)) or self._captured(ready, "repeat", slot)
        if not ready.events:
            ready.events += [self._driver.event(timed=False) for _ in range(SLOTS)]
        self._driver.replay(graph, self._stream)
        self._driver.record(ready.events[slot], self._stream)
        return Flight(slot, ready.events[slot])

    def _captured(self, ready: Ready, kind: Kind, slot: int) -> Graph:
        with self._driver.capture(self._stream) as graphs:
            self._put(ready, kind, slot, None)
        ready.graphs[kind, slot] = graphs[0]
        return graphs[0]

    def _put(self, ready: Ready, kind: Kind, slot: int, profile: Profile | None) -> None:
        """Adds a step to the stream. Its tokens are stored in the slot `slot`."""
        if kind in ("logits", "draw"):
            ready.staging.copy_in(self._driver, self._stream)
        draws, starts = (ready.draws, ready.draw_starts[slot]) if kind != "logits" else (None, ready.starts)
        if draws is not None and kind != "repeat":
            draws.copy_in(self._driver, self._stream)
        if profile is not None:
            profile.begin(self._driver, self._stream, ready.entry.name)
        for number, start in enumerate(starts):
            early = number > 0 and profile is None  # only after a kernel, not after a copy or an event
            self._driver.launch(start.function, start.grid, start.arguments, self._stream, early=early)
            if profile is not None:
                moved = ready.moved_by(start)
                profile.mark(self._driver, self._stream, start.label, start.function.name, start.grid, moved)
        for array, address in ready.outputs.values():
            if array.nbytes and draws is None:
                self._driver.copy_out(array.reshape(-1).view(np.uint8), address, self._stream)

    # before the first step of an entry point

    def _function(self, each: PlannedKernel, image: bytes) -> Function:
        module = self._driver.load(image)
        return self._driver.function(module, each.name, threads=each.threads, shared=each.shared, waits=each.waits)

    def _opened(self, name: str) -> Ready:
        ready = self._entries.get(name)
        if ready is None:
            ready = self._entries[name] = self._ready(self._interface.entry(name))
        return ready

    def _ready(self, entry: Entry) -> Ready:
        staging = Staging(self._driver, fields_of(entry, self._interface), f"the step of {entry.name}")
        launches = [(launch, call) for launch, calls in self._launches(entry.name) for call in calls]
        starts = [self._start(launch, call, entry.name, staging) for launch, call in launches]
        plan = self._schedule.entries[entry.name]
        outputs: dict[str, tuple[np.ndarray, Address]] = {}
        for name, (number, buffer) in plan.outputs.items():
            call = plan.calls[number]
            found = self._schedule.graphs[call.function].buffers[buffer]
            host = self._driver.pinned(found.nbytes).view(dtype_of(found.dtype)).reshape(found.shape)
            outputs[name] = host, self._arena + call.places[buffer]
        ready = Ready(entry, staging, starts, outputs)
        if drawing := self._plan.sampling.get(entry.name):
            ready.draws = Draws(self._driver, entry.num_sequences, entry.name)
            logits, address = outputs["logits"]
            head = launches[-1][0]
            last = [self._start(head, call, entry.name, staging) for call in drawing.last]
            replaced = sum(launch is head for launch, _ in launches) if last else 0
            for slot in range(SLOTS):
                places = {**ready.draws.places(staging, address, slot), SCRATCH: self._scratch}
                after = [self._draw_start(call, places, logits.nbytes) for call in drawing.after]
                ready.draw_starts.append([*starts[: len(starts) - replaced], *last, *after])
        return ready

    def _draw_start(self, call: KernelCall, places: Mapping[str, Address], nbytes: int) -> Start:
        values = [places[v.buffer] + v.offset if isinstance(v, Pointer) else v for v in call.arguments]
        return self._filled(f"sampling: {call.kernel.stem}", nbytes, call, values)

    def _launches(self, entry: str) -> Iterator[tuple[Launch, Sequence[KernelCall]]]:
        """Every launch of an entry point with its kernel calls, in order."""
        listed = (group for call in self._schedule.entries[entry].calls for group in self._plan.calls[call.function])
        yield from zip(self._schedule.launches(entry), listed, strict=True)

    def _start(self, launch: Launch, call: KernelCall, entry: str, staging: Staging) -> Start:
        values = [self._value(launch, operand, entry, staging) for operand in call.arguments]
        where = launch.call.prefix.rstrip(".") or launch.graph.name
        keys = keys_of(self._interface.entry(entry), self._interface)
        nbytes = cost_of(launch.graph, launch.group, keys).nbytes
        return self._filled(f"{where}: {launch.group.name}", nbytes, call, values)

    def _filled(self, label: str, nbytes: int, call: KernelCall, values: Sequence[int | float]) -> Start:
        """A call with its arguments; `values` has an address for each pointer."""
        kernel = self._plan.kernels[call.kernel]
        scratch = self._global_scratch if kernel.global_scratch_size else 0
        arguments = Arguments(packed(kernel.types, [*values, scratch, NO_PROFILER]))
        return Start(label, nbytes, self._functions[call.kernel], call.grid, arguments)

    def _value(self, launch: Launch, operand: Operand, entry: str, staging: Staging) -> int | float:
        if not isinstance(operand, Pointer):
            return operand
        if operand.buffer == SCRATCH:
            return self._scratch + operand.offset
        buffer = launch.graph.buffers[operand.buffer]
        match buffer.kind:
            case "weight":
                base = self._weights[launch.call.full_name(buffer.name)]
            case "state":
                base = self._states.address(launch.call.full_name(buffer.name))
            case "step":
                base = staging.address(buffer.name.removeprefix("step:"))
            case "value" | "temporary":
                number, name = launch.call.values.get(buffer.name, (launch.at, buffer.name))
                calls = self._schedule.entries[entry].calls
                base = staging.address(name) if number == GIVEN else self._arena + calls[number].places[name]
        return base + operand.offset
