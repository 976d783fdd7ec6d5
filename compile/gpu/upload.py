"""Copies weights to the device, in the order of their file, through two buffers of pinned memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.gpu.driver.driver import Address, Driver, Stream

CHUNK = 32 << 20  # bytes of a buffer: large enough to hide the start of a copy, small compared with weights


def upload(driver: Driver, stream: Stream, arrays: Mapping[str, np.ndarray]) -> dict[str, Address]:
    """Copies all arrays and returns their device addresses, by name. Contiguous arrays with the same memory share one.

    While the device copies one buffer, the other is filled from the file. Pages are read once, in order.
    """
    placed: dict[tuple[int, int], Address] = {}
    found: dict[str, Address] = {}
    buffers = _Buffers(driver, stream, min(CHUNK, max((array.nbytes for array in arrays.values()), default=1)))
    for name, array in sorted(arrays.items(), key=lambda item: item[1].ctypes.data):
        key = array.ctypes.data, array.nbytes
        if array.flags.c_contiguous and key in placed:
            found[name] = placed[key]
            continue
        found[name] = driver.allocate(array.nbytes, name)
        buffers.copy(found[name], bytes_of(array))
        if array.flags.c_contiguous:  # a view with strides has its bytes in another order than its memory
            placed[key] = found[name]
    driver.wait(stream)
    buffers.close()
    return found


class _Buffers:
    """Two pinned buffers, used in turn. A buffer is free again when its event is complete."""

    def __init__(self, driver: Driver, stream: Stream, nbytes: int) -> None:
        self._driver, self._stream, self._turn = driver, stream, 0
        self._buffers = [driver.pinned(nbytes) for _ in range(2)]
        self._events = [driver.event(timed=False) for _ in range(2)]

    def copy(self, to: Address, array: np.ndarray) -> None:
        """Copies bytes to the device, in chunks of a buffer. `array` is uint8."""
        size = len(self._buffers[0])
        for start in range(0, len(array), size):
            part = array[start : start + size]
            buffer, event = self._buffers[self._turn][: len(part)], self._events[self._turn]
            self._driver.wait_for(event)
            buffer[:] = part
            self._driver.copy_in(to + start, buffer, self._stream)
            self._driver.record(event, self._stream)
            self._turn ^= 1

    def close(self) -> None:
        """Frees both buffers. The stream must be idle."""
        for buffer, event in zip(self._buffers, self._events, strict=True):
            self._driver.unpin(buffer)
            self._driver.forget(event)
