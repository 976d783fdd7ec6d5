"""Driver: the typed functions that CUDA's driver API and HIP's runtime share. cuda.py and hip.py have the differences.

Every status is checked. Addresses are integers; all other handles are objects of the API. The attributes of `api` are
its functions, by name: they accept the input arguments of the C functions, and return a tuple of the status and the
outputs.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NewType

import numpy as np

from bringup.compile.gpu.driver.errors import checked
from bringup.compile.gpu.driver.names import Names
from bringup.diagnostics import BringupError, fail

Address = int  # of device memory
Stream = NewType("Stream", object)
Event = NewType("Event", object)
Module = NewType("Module", object)
Graph = NewType("Graph", object)
Grid = tuple[int, int, int]
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, hipStreamNonBlocking
UNTIMED = 2  # CU_EVENT_DISABLE_TIMING, hipEventDisableTiming
MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP, hipHostMallocMapped
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel in a module. `threads`: threads of a block. `shared`: dynamic shared memory in bytes.

    `waits`: the kernel itself waits for the previous kernel in the stream.
    """

    handle: Any
    name: str
    threads: int
    shared: int
    waits: bool


class Arguments:
    """The arguments of a kernel in the layout that the driver reads: an array of the addresses of the values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        """`values`: the bytes of each argument, in the order of the kernel's parameters and of their sizes."""
        self._values = [ctypes.create_string_buffer(value, max(len(value), 8)) for value in values]
        self._table = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, self._values))

    @property
    def address(self) -> int:
        """Host address of the array. It is valid as long as this object exists."""
        return ctypes.addressof(self._table)


class Driver(ABC):
    """One device. All functions raise BU617 for a failed call, and BU618 if the device is out of memory."""

    def __init__(self, api: Any, names: Names, label: Callable[[str], None] | None = None) -> None:
        """Opens the first device. `label` is called with the name of each allocation before it."""
        self._api, self._names = api, names
        self._label: Callable[[str], None] = label or (lambda name: None)
        self._held: dict[tuple[str, int], Any] = {}  # by the name of the function that releases it, and its handle
        self._call(names.start, 0)
        self._device, self._context = self._begin()
        self._open = True

    @contextmanager
    def current(self) -> Generator[None]:
        """As `use`, in the block: after it the thread has its previous device, which other libraries may use."""
        before = self._call(self._names.current)
        self.use()
        try:
            yield
        finally:
            with suppress(BringupError):  # it repeats the failure of a kernel
                self._call(self._names.make_current, before)

    def use(self) -> None:
        """Makes the device current in this thread: each thread has its own current device.

        Other functions need it, except for properties of the device. Raises BU617 after `close`.
        """
        if not self._open:
            help = "load the bundle again: its device memory was freed"
            raise fail("BU617", "the executor is closed", help=help)
        self._call(self._names.make_current, self._context)

    # the differences between the two APIs

    @abstractmethod
    def _begin(self) -> tuple[Any, Any]:
        """Opens the first device. Returns its handle, and what `make_current` reads."""

    @abstractmethod
    def _end(self) -> None:
        """Releases the device."""

    @property
    @abstractmethod
    def version(self) -> tuple[int, int]:
        """Major and minor version of the driver or the runtime: (13, 0)."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The architecture of the device, as compilers name it: `sm_90`, `gfx942`."""

    @property
    @abstractmethod
    def shared_limit(self) -> int:
        """Maximum shared memory of a block, in bytes."""

    def _relaxed(self) -> Any:
        """The mode of a capture during which this thread may make any call outside the stream."""
        return RELAXED

    @abstractmethod
    def _prepare(self, handle: Any, shared: int) -> None:
        """Loads a kernel so that it can be captured. `shared`: its dynamic shared memory in bytes."""

    @abstractmethod
    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        """Launches a kernel in the stream. The driver copies the arguments during the call. `grid` is in blocks.

        With `early`, a kernel that `waits` may start while the previous kernel in the stream runs, if the device
        supports it.
        """

    # the device

    @property
    def name(self) -> str:
        """The name of the device: `NVIDIA H200`."""
        return self._call(self._names.device_name, 256, self._device).split(b"\0")[0].decode()

    def _attribute(self, key: Any) -> int:
        return int(self._call(self._names.attribute, key, self._device))

    # memory

    def allocate(self, nbytes: int, name: str = "") -> Address:
        """Allocates device memory, aligned to at least 256 bytes. `name` is for messages of the emulated driver."""
        self._label(name)
        address = int(self._call(self._names.allocate, max(nbytes, 1)))
        self._hold(self._names.free, address)
        return address

    def free(self, address: Address) -> None:
        """Frees device memory, after all streams are idle."""
        self._give_back(self._names.free, address)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Pinned host memory for copies, as uint8 [nbytes]. It exists until `unpin` or `close`."""
        return self._pinned(nbytes, 0)

    def mapped(self, nbytes: int, name: str = "") -> tuple[np.ndarray, Address]:
        """Pinned host memory that kernels can access too: as uint8 [nbytes], and its device address.

        Stores of a kernel are visible to the host once it has waited for that kernel. `name` is as in `allocate`.
        """
        self._label(name)
        array = self._pinned(nbytes, MAPPED)
        return array, int(self._call(self._names.mapped, array.ctypes.data, 0))

    def _pinned(self, nbytes: int, flags: int) -> np.ndarray:
        address = int(self._call(self._names.pin, max(nbytes, 1), flags))
        self._hold(self._names.unpin, address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * max(nbytes, 1)).from_address(address))[:nbytes]

    def unpin(self, array: np.ndarray) -> None:
        """Frees an array that `pinned` returned. It must not be used any more."""
        self._give_back(self._names.unpin, array.ctypes.data)

    def copy_in(self, to: Address, array: np.ndarray, stream: Stream) -> None:
        """Copies host to device, in the stream. `array` is contiguous and pinned; it must not change before that."""
        self._call(self._names.copy_in, to, array.ctypes.data, array.nbytes, stream)

    def copy_out(self, array: np.ndarray, of: Address, stream: Stream) -> None:
        """Copies device to host, in the stream. `array` is contiguous and pinned; it is valid after `wait`."""
        self._call(self._names.copy_out, array.ctypes.data, of, array.nbytes, stream)

    def zero(self, address: Address, nbytes: int, stream: Stream) -> None:
        """Fills `nbytes` of device memory with zeros, in the stream."""
        if nbytes:
            self._call(self._names.fill, address, 0, nbytes, stream)

    # kernels

    def load(self, image: bytes) -> Module:
        """Loads the bytes of a cubin or of an hsaco."""
        return self._hold(self._names.unload, self._call(self._names.load, image))

    def function(self, module: Module, name: str, *, threads: int, shared: int, waits: bool = False) -> Function:
        """A kernel of a module, loaded so that it can be captured. See `Function` for the arguments."""
        handle = self._call(self._names.function, module, name.encode())
        self._prepare(handle, shared)
        return Function(handle, name, threads, shared, waits)

    # streams, events, graphs

    def stream(self) -> Stream:
        """Creates a stream that does not synchronise with the default stream."""
        return self._hold(self._names.end_stream, self._call(self._names.stream, NON_BLOCKING))

    def wait(self, stream: Stream) -> None:
        """Waits for all work in the stream. Errors of kernels are raised here."""
        self._call(self._names.wait, stream)

    def event(self, *, timed: bool = True) -> Event:
        """Creates an event. One that does not record its time costs less on the device."""
        return self._hold(self._names.end_event, self._call(self._names.event, 0 if timed else UNTIMED))

    def forget(self, event: Event) -> None:
        """Destroys an event."""
        self._give_back(self._names.end_event, event)

    def record(self, event: Event, stream: Stream) -> None:
        """Records the event: it completes after all work that is in the stream now."""
        self._call(self._names.record, event, stream)

    def wait_for(self, event: Event) -> None:
        """Waits until an event is complete. Returns immediately if the event was never recorded."""
        self._call(self._names.wait_for, event)

    def seconds(self, start: Event, end: Event) -> float:
        """Seconds between two completed events."""
        return float(self._call(self._names.elapsed, start, end)) / 1e3

    @contextmanager
    def capture(self, stream: Stream) -> Generator[list[Graph]]:
        """Captures the work that the block adds to the stream as a graph, without running it.

        The yielded list contains the graph after the block. In the block, garbage collection may close another driver.
        """
        found: list[Graph] = []
        try:
            self._call(self._names.capture, stream, self._relaxed())
            yield found
        except BaseException:
            with suppress(BringupError):  # the driver has no graph if one of its calls failed
                self._call(self._names.end_captured, self._call(self._names.end_capture, stream))
            raise
        graph = self._call(self._names.end_capture, stream)
        try:
            found.append(self._hold(self._names.end_graph, self._call(self._names.instantiate, graph, 0)))
        finally:
            self._call(self._names.end_captured, graph)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Launches a graph in the stream."""
        self._call(self._names.replay, graph, stream)

    def close(self) -> None:
        """Releases all resources after the work in all streams. It may be called in any thread, and more than once.

        The current device of the thread stays the same, because garbage collection closes drivers amid other code.
        Errors are ignored, one by one: after a failed kernel the context has ended, and all calls fail.
        """
        if not self._open:
            return
        self._open, names = False, self._names
        calls = [(names.make_current, self._context)]
        calls += [(names.wait, stream) for stream in self._held_by(names.end_stream)]
        calls += [(name, handle) for name in names.given_back for handle in self._held_by(name)]
        with suppress(BringupError):
            calls.append((names.make_current, self._call(names.current)))
        for name, handle in calls:
            with suppress(BringupError):
                self._call(name, handle)
        self._held.clear()
        with suppress(BringupError):
            self._end()

    def _held_by(self, give_back: str) -> list[Any]:
        """The handles that the function named `give_back` releases."""
        return [handle for (name, _), handle in self._held.items() if name == give_back]

    def _hold(self, give_back: str, handle: Any) -> Any:
        """Records a handle, which the function named `give_back` releases. Returns the handle."""
        self._held[give_back, int(handle)] = handle
        return handle

    def _give_back(self, name: str, handle: Any) -> None:
        self._call(name, handle)
        del self._held[name, int(handle)]

    def _call(self, name: str, *arguments: Any) -> Any:
        return checked(self._api, self._names, name, getattr(self._api, name)(*arguments))
