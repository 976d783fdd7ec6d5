"""The read bandwidth of this machine's memory with several threads."""

from __future__ import annotations

import mmap
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SIZE = 1 << 29  # bytes; far beyond most last-level caches
PASSES = 3


class Probe:
    """Reads one large anonymous buffer with several threads.

    numpy's XOR of uint64 is vectorised and releases Python's lock.
    """

    def __init__(self, threads: int, size: int = SIZE) -> None:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        words = np.frombuffer(memory, np.uint64)
        words[:] = 1  # unwritten pages are all the same zero page, which is read from cache
        self._size, self._parts = size, np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)

    def bytes_per_second(self) -> float:
        """The median of a few passes."""
        rates: list[float] = []
        for _ in range(PASSES):
            start = time.perf_counter()
            list(self._pool.map(np.bitwise_xor.reduce, self._parts))
            rates.append(self._size / (time.perf_counter() - start))
        return statistics.median(rates)
