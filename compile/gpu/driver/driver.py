"""Driver: CUDA's driver API and HIP's runtime as few typed functions, the same for both; cuda.py and hip.py differ.

Every status is checked; addresses are integers, all else handles of the API's own. `api` has its functions by name:
they take what the C functions read, and give a tuple of the status and what those write.
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
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel in a module. `threads` of a block, `shared` bytes of dynamic shared memory.

    `waits`: it waits by itself for the kernel before it.
    """

    handle: Any
    name: str
    threads: int
    shared: int
    waits: bool


class Arguments:
    """The arguments of a kernel, in memory as the driver reads them: an array of addresses of values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        """`values` in the order of the kernel's parameters, each as many bytes as its parameter has."""
        self._values = [ctypes.create_string_buffer(value, max(len(value), 8)) for value in values]
        self._table = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, self._values))

    @property
    def address(self) -> int:
        """Of the array, on the host; valid while this object lives."""
        return ctypes.addressof(self._table)


class Driver(ABC):
    """One device. All functions raise BU617 where the driver refuses, BU618 for no memory."""

    def __init__(self, api: Any, names: Names, label: Callable[[str], None] | None = None) -> None:
        """The first device. `label` is called with a name for the memory that is allocated next."""
        self._api, self._names, self._label = api, names, label or _unnamed
        self._held: dict[tuple[str, int], Any] = {}  # by the function that gives it back, and its handle
        self._call(names.start, 0)
        self._device = self._begin()
        self._open = True
        try:
            self.use()
        except BringupError:
            self.close()
            raise

    def use(self) -> None:
        """Makes the device that of this thread: a thread has one of its own. Raises BU617 once the driver is closed.

        Before other calls, wherever another thread may have called last.
        """
        if not self._open:
            help = "load the bundle again: its memory on the device was given back"
            raise fail("BU617", "the executor is closed", help=help)
        self._make_current()

    # what differs

    @abstractmethod
    def _begin(self) -> Any:
        """Takes the first device, and gives it as the API names it."""

    @abstractmethod
    def _make_current(self) -> None:
        """Has the calls of this thread be for the device."""

    @abstractmethod
    def _end(self) -> None:
        """Gives the device back."""

    @property
    @abstractmethod
    def version(self) -> tuple[int, int]:
        """The version that the driver, or the runtime, is of: (13, 0)."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """What kernels are compiled for: `sm_90`, `gfx942`."""

    @property
    @abstractmethod
    def shared_limit(self) -> int:
        """The most bytes of shared memory that a block can have."""

    def _of_thread(self) -> Any:
        """The mode of a capture that concerns this thread alone."""
        return THREAD_LOCAL

    @abstractmethod
    def _prepare(self, handle: Any, shared: int) -> None:
        """Has a kernel ready for a capture, with so many bytes of dynamic shared memory."""

    @abstractmethod
    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        """Starts a kernel in the stream. The driver copies the arguments at once.

        With `early`, one that waits by itself may start while the kernel before it in the stream runs, on a device that
        can do that.
        """

    # the device

    @property
    def name(self) -> str:
        """`NVIDIA H200`."""
        return self._call(self._names.device_name, 256, self._device).split(b"\0")[0].decode()

    def _attribute(self, key: Any) -> int:
        return int(self._call(self._names.attribute, key, self._device))

    # memory

    def allocate(self, nbytes: int, name: str = "") -> Address:
        """Device memory, aligned to 256 bytes at least. `name` is for the messages of the double."""
        self._label(name)
        address = int(self._call(self._names.allocate, max(nbytes, 1)))
        self._hold(self._names.free, address)
        return address

    def free(self, address: Address) -> None:
        """Waits for all streams."""
        self._give_back(self._names.free, address)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Bytes of the host that the device reads and writes by itself; they live until `unpin` or `close`."""
        address = int(self._call(self._names.pin, max(nbytes, 1), 0))
        self._hold(self._names.unpin, address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * max(nbytes, 1)).from_address(address))[:nbytes]

    def unpin(self, array: np.ndarray) -> None:
        """Gives back what `pinned` gave; nothing may use it any more."""
        self._give_back(self._names.unpin, array.ctypes.data)

    def copy_in(self, to: Address, array: np.ndarray, stream: Stream) -> None:
        """Host to device, in the stream: `array` is dense and pinned, and stays as it is until that is done."""
        self._call(self._names.copy_in, to, array.ctypes.data, array.nbytes, stream)

    def copy_out(self, array: np.ndarray, of: Address, stream: Stream) -> None:
        """Device to host, in the stream: `array` is dense and pinned, and has the bytes once the stream is done."""
        self._call(self._names.copy_out, array.ctypes.data, of, array.nbytes, stream)

    def zero(self, address: Address, nbytes: int, stream: Stream) -> None:
        """Fills device memory with zeros, in the stream."""
        if nbytes:
            self._call(self._names.fill, address, 0, nbytes, stream)

    # kernels

    def load(self, image: bytes) -> Module:
        """A cubin, or an hsaco."""
        return self._hold(self._names.unload, self._call(self._names.load, image))

    def function(self, module: Module, name: str, *, threads: int, shared: int, waits: bool = False) -> Function:
        """A kernel of a module, loaded and ready for a capture."""
        handle = self._call(self._names.function, module, name.encode())
        self._prepare(handle, shared)
        return Function(handle, name, threads, shared, waits)

    # streams, events, graphs

    def stream(self) -> Stream:
        """A stream that does not wait for the default one."""
        return self._hold(self._names.end_stream, self._call(self._names.stream, NON_BLOCKING))

    def wait(self, stream: Stream) -> None:
        """Until all that is in the stream is done. Errors of kernels are raised here."""
        self._call(self._names.wait, stream)

    def event(self) -> Event:
        """An event with a time."""
        return self._hold(self._names.end_event, self._call(self._names.event, 0))

    def forget(self, event: Event) -> None:
        """Gives an event back."""
        self._give_back(self._names.end_event, event)

    def record(self, event: Event, stream: Stream) -> None:
        """The event happens when all that is in the stream by now is done."""
        self._call(self._names.record, event, stream)

    def wait_for(self, event: Event) -> None:
        """Until an event has happened; at once for one that was never recorded."""
        self._call(self._names.wait_for, event)

    def seconds(self, start: Event, end: Event) -> float:
        """Between two events that have happened."""
        return float(self._call(self._names.elapsed, start, end)) / 1e3

    @contextmanager
    def capture(self, stream: Stream) -> Generator[list[Graph]]:
        """What the block puts into the stream is not run, but becomes a graph: the list has it after the block."""
        found: list[Graph] = []
        self._call(self._names.capture, stream, self._of_thread())
        try:
            yield found
        except BaseException:
            getattr(self._api, self._names.end_capture)(stream)  # its status is that of the failure
            raise
        graph = self._call(self._names.end_capture, stream)
        try:
            found.append(self._hold(self._names.end_graph, self._call(self._names.instantiate, graph, 0)))
        finally:
            self._call(self._names.end_captured, graph)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Puts all of a graph into the stream."""
        self._call(self._names.replay, graph, stream)

    def close(self) -> None:
        """Gives everything back, in any thread and once.

        Errors are left aside, each for itself: a failed kernel has ended the context, and then all calls fail.
        """
        if not self._open:
            return
        self._open = False
        with suppress(BringupError):
            self._make_current()
        for name in self._names.given_back:
            for kind, handle in [key for key in self._held if key[0] == name]:
                with suppress(BringupError):
                    self._call(kind, self._held.pop((kind, handle)))
        with suppress(BringupError):
            self._end()

    def _hold(self, give_back: str, handle: Any) -> Any:
        """A handle that the function of this name gives back."""
        self._held[give_back, int(handle)] = handle
        return handle

    def _give_back(self, name: str, handle: Any) -> None:
        self._call(name, handle)
        del self._held[name, int(handle)]

    def _call(self, name: str, *arguments: Any) -> Any:
        return checked(self._api, self._names, name, getattr(self._api, name)(*arguments))


def _unnamed(name: str) -> None:
    """Memory of the driver itself has no names."""
