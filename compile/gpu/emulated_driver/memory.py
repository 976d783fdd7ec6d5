"""Memory of the emulated driver: device memory with exact bounds, and pinned host memory, also mapped."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bringup.compile.gpu.emulated_driver.status import INVALID_VALUE, Refused, call
from bringup.compile.gpu.emulated_driver.streams import Streams
from bringup.compile.ptx import Device
from bringup.compile.ptx.hardware.spaces import GLOBAL_BASE

MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP


class Memory(Streams):
    """cuMem…: allocations, copies and fills in streams."""

    def __init__(self, nbytes: int) -> None:
        """A device with `nbytes` of memory."""
        super().__init__()
        self.device, self._total = Device(nbytes), nbytes
        self._sizes: dict[int, int] = {}
        self._host: dict[int, Any] = {}
        self._mapped: dict[int, int] = {}  # device addresses of host memory, by host address
        self._next = ""

    def label(self, name: str) -> None:
        """Sets the name of the next allocation, for messages."""
        self._next = name

    @call
    def cuMemAlloc(self, nbytes: int) -> Any:
        self.not_capturing()
        if nbytes <= 0:
            raise Refused(INVALID_VALUE, f"an allocation of {nbytes} bytes")
        if sum(self._sizes.values()) + nbytes > self._total:
            raise MemoryError(f"{nbytes:,} bytes more than {self._total:,} in all")
        address = int(self.device.alloc(nbytes, self._next or f"allocation {len(self._sizes)}"))
        self._next, self._sizes[address] = "", nbytes
        return self.CUdeviceptr(address)

    @call
    def cuMemFree(self, address: Any) -> None:
        self.not_capturing()
        if int(address) not in self._sizes:
            raise Refused(INVALID_VALUE, f"{int(address):#x} is not the start of an allocation")
        self.drain_all()
        del self._sizes[int(address)]
        self.device.free(int(address))

    @call
    def cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        memory = self._mapped_memory(nbytes) if flags & MAPPED else (ctypes.c_ubyte * nbytes)()
        self._host[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _mapped_memory(self, nbytes: int) -> Any:
        """Host memory with a device address: a range of the array that holds the device's memory."""
        address = int(self.device.alloc(nbytes, self._next or "mapped memory"))
        place = self.device.bytes.ctypes.data + address - GLOBAL_BASE
        memory = (ctypes.c_ubyte * nbytes).from_address(place)
        self._next, self._mapped[ctypes.addressof(memory)] = "", address
        return memory

    @call
    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        if int(address) not in self._mapped:
            raise Refused(INVALID_VALUE, f"{int(address):#x} is not mapped memory")
        return self.CUdeviceptr(self._mapped[int(address)])

    @call
    def cuMemFreeHost(self, address: int) -> None:
        if int(address) not in self._host:
            raise Refused(INVALID_VALUE, f"{int(address):#x} is not pinned memory")
        self.drain_all()
        del self._host[int(address)]
        if int(address) in self._mapped:
            self.device.free(self._mapped.pop(int(address)))

    @call
    def cuMemcpyHtoDAsync(self, to: Any, source: int, nbytes: int, stream: Any) -> None:
        self._check_pinned(source, nbytes)
        self.queue(stream).put(lambda: self.device.write(int(to), self._bytes(source, nbytes)))

    @call
    def cuMemcpyDtoHAsync(self, to: int, source: Any, nbytes: int, stream: Any) -> None:
        self._check_pinned(to, nbytes)

        def copy() -> None:
            self._bytes(to, nbytes)[:] = self.device.read(int(source), np.dtype(np.uint8), (nbytes,))

        self.queue(stream).put(copy)

    @call
    def cuMemsetD8Async(self, address: Any, value: int, nbytes: int, stream: Any) -> None:
        self.queue(stream).put(lambda: self.device.fill(int(address), value, nbytes))

    def _bytes(self, address: int, nbytes: int) -> np.ndarray:
        """`nbytes` of pinned memory as an array of uint8."""
        self._check_pinned(address, nbytes)  # it may have been freed since
        return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(int(address)))

    def _check_pinned(self, address: int, nbytes: int) -> None:
        """Raises Refused for memory that is not pinned: real drivers copy it synchronously; bringup never does that."""
        for begin, memory in self._host.items():
            if begin <= int(address) and int(address) + nbytes <= begin + len(memory):
                return
        raise Refused(INVALID_VALUE, f"{nbytes} bytes at {int(address):#x} of the host are not pinned")
