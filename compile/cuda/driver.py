"""The CUDA driver as few typed functions. Every status is checked; addresses are integers, all else its own handles.

`api` is the module `cuda.bindings.driver`, or its double (double/): both have the functions of the driver API by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NewType

import numpy as np

from bringup.compile.cuda.errors import checked
from bringup.diagnostics import BringupError, fail

Address = int  # of device memory
Stream = NewType("Stream", object)
Event = NewType("Event", object)
Module = NewType("Module", object)
Graph = NewType("Graph", object)
Grid = tuple[int, int, int]
STATIC_SHARED = 49_152  # bytes of shared memory that a kernel may have without asking (CUDA programming guide)
# Functions that give something back, in an order in which nothing is used by what is still there.
_GIVEN_BACK = ("cuGraphExecDestroy", "cuEventDestroy", "cuStreamDestroy", "cuModuleUnload", "cuMemFree",
               "cuMemFreeHost")  # fmt: skip


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


class Driver:
    """One device with its primary context. All functions raise BU617 where the driver refuses, BU618 for no memory."""

    def __init__(self, api: Any, label: Callable[[str], None] | None = None) -> None:
        """The first device. `label` is called with a name for the memory that is allocated next."""
        self._api, self._label = api, label or _unnamed
        self._held: dict[tuple[str, int], Any] = {}  # by the function that gives it back, and its handle
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._open = True
        try:
            self.use()
        except BringupError:
            self.close()
            raise

    def use(self) -> None:
        """Makes the context that of this thread: a thread has one of its own. Raises BU617 once the driver is closed.

        Before other calls, wherever another thread may have called last.
        """
        if not self._open:
            help = "load the bundle again: its memory on the device was given back"
            raise fail("BU617", "the executor is closed", help=help)
        self._call("cuCtxSetCurrent", self._context)

    # the device

    @property
    def name(self) -> str:
        """`NVIDIA H200`."""
        return self._call("cuDeviceGetName", 256, self._device).split(b"\0")[0].decode()

    @property
    def version(self) -> tuple[int, int]:
        """The CUDA version that the driver is of: (13, 0)."""
        number = int(self._call("cuDriverGetVersion"))
        return number // 1000, number % 1000 // 10

    @property
    def capability(self) -> tuple[int, int]:
        """(9, 0) for sm_90."""
        return self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")

    @property
    def shared_limit(self) -> int:
        """The most bytes of shared memory that a block can have."""
        return self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def _attribute(self, name: str) -> int:
        key = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", key, self._device))

    # memory

    def allocate(self, nbytes: int, name: str = "") -> Address:
        """Device memory, aligned to 256 bytes at least. `name` is for the messages of the double."""
        self._label(name)
        address = int(self._call("cuMemAlloc", max(nbytes, 1)))
        self._hold("cuMemFree", address)
        return address

    def free(self, address: Address) -> None:
        """Waits for all streams."""
        self._give_back("cuMemFree", address)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Bytes of the host that the device reads and writes by itself; they live until `unpin` or `close`."""
        address = int(self._call("cuMemHostAlloc", max(nbytes, 1), 0))
        self._hold("cuMemFreeHost", address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * max(nbytes, 1)).from_address(address))[:nbytes]

    def unpin(self, array: np.ndarray) -> None:
        """Gives back what `pinned` gave; nothing may use it any more."""
        self._give_back("cuMemFreeHost", array.ctypes.data)

    def copy_in(self, to: Address, array: np.ndarray, stream: Stream) -> None:
        """Host to device, in the stream: `array` is dense and pinned, and stays as it is until that is done."""
        self._call("cuMemcpyHtoDAsync", to, array.ctypes.data, array.nbytes, stream)

    def copy_out(self, array: np.ndarray, of: Address, stream: Stream) -> None:
        """Device to host, in the stream: `array` is dense and pinned, and has the bytes once the stream is done."""
        self._call("cuMemcpyDtoHAsync", array.ctypes.data, of, array.nbytes, stream)

    def zero(self, address: Address, nbytes: int, stream: Stream) -> None:
        """Fills device memory with zeros, in the stream."""
        if nbytes:
            self._call("cuMemsetD8Async", address, 0, nbytes, stream)

    # kernels

    def load(self, image: bytes) -> Module:
        """A cubin."""
        return self._hold("cuModuleUnload", self._call("cuModuleLoadData", image))

    def function(self, module: Module, name: str, *, threads: int, shared: int, waits: bool = False) -> Function:
        """A kernel of a module, loaded and ready for a capture."""
        handle = self._call("cuModuleGetFunction", module, name.encode())
        if shared > STATIC_SHARED:
            key = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", handle, key, shared)
        self._call("cuFuncLoad", handle)
        return Function(handle, name, threads, shared, waits)

    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        """Starts a kernel in the stream. The driver copies the arguments at once.

        With `early`, one that waits by itself may start while the kernel before it in the stream runs.
        """
        config = self._api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = function.threads, 1, 1
        config.sharedMemBytes, config.hStream = function.shared, stream
        if early and function.waits:
            config.attrs, config.numAttrs = [self._early()], 1
        self._call("cuLaunchKernelEx", config, function.handle, arguments.address, 0)

    def _early(self) -> Any:
        """Of a launch that the programming guide calls a secondary kernel of programmatic dependent launch."""
        attribute = self._api.CUlaunchAttribute()
        attribute.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        return attribute

    # streams, events, graphs

    def stream(self) -> Stream:
        """A stream that does not wait for the default one."""
        flags = int(self._api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return self._hold("cuStreamDestroy", self._call("cuStreamCreate", flags))

    def wait(self, stream: Stream) -> None:
        """Until all that is in the stream is done. Errors of kernels are raised here."""
        self._call("cuStreamSynchronize", stream)

    def event(self) -> Event:
        """An event with a time."""
        return self._hold("cuEventDestroy", self._call("cuEventCreate", 0))

    def forget(self, event: Event) -> None:
        """Gives an event back."""
        self._give_back("cuEventDestroy", event)

    def record(self, event: Event, stream: Stream) -> None:
        """The event happens when all that is in the stream by now is done."""
        self._call("cuEventRecord", event, stream)

    def wait_for(self, event: Event) -> None:
        """Until an event has happened; at once for one that was never recorded."""
        self._call("cuEventSynchronize", event)

    def seconds(self, start: Event, end: Event) -> float:
        """Between two events that have happened."""
        return float(self._call("cuEventElapsedTime", start, end)) / 1e3

    @contextmanager
    def capture(self, stream: Stream) -> Generator[list[Graph]]:
        """What the block puts into the stream is not run, but becomes a graph: the list has it after the block."""
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        found: list[Graph] = []
        self._call("cuStreamBeginCapture", stream, mode)
        try:
            yield found
        except BaseException:
            self._api.cuStreamEndCapture(stream)  # its status is that of the failure
            raise
        graph = self._call("cuStreamEndCapture", stream)
        try:
            found.append(self._hold("cuGraphExecDestroy", self._call("cuGraphInstantiate", graph, 0)))
        finally:
            self._call("cuGraphDestroy", graph)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Puts all of a graph into the stream."""
        self._call("cuGraphLaunch", graph, stream)

    def close(self) -> None:
        """Gives everything back, in any thread and once.

        Errors are left aside, each for itself: a failed kernel has ended the context, and then all calls fail.
        """
        if not self._open:
            return
        self._open = False
        with suppress(BringupError):
            self._call("cuCtxSetCurrent", self._context)
        for name in _GIVEN_BACK:
            for kind, handle in [key for key in self._held if key[0] == name]:
                with suppress(BringupError):
                    self._call(kind, self._held.pop((kind, handle)))
        with suppress(BringupError):
            self._call("cuDevicePrimaryCtxRelease", self._device)

    def _hold(self, give_back: str, handle: Any) -> Any:
        """A handle that the function of this name gives back."""
        self._held[give_back, int(handle)] = handle
        return handle

    def _give_back(self, name: str, handle: Any) -> None:
        self._call(name, handle)
        del self._held[name, int(handle)]

    def _call(self, name: str, *arguments: Any) -> Any:
        return checked(self._api, name, getattr(self._api, name)(*arguments))


def _unnamed(name: str) -> None:
    """Memory of the driver itself has no names."""
