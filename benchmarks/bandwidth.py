"""How fast this machine's memory is read by all its cores; `python benchmarks/bandwidth.py` prints it."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SIZE = 1 << 30  # bytes; far beyond any last-level cache
PASSES = 5


class Probe:
    """Reads one large anonymous buffer by every core at once.

    numpy's XOR of uint64 is vectorised and releases the GIL: as fast here as a loop in C with AVX-512.
    """

    def __init__(self, threads: int) -> None:
        memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        words = np.frombuffer(memory, np.uint64)
        words[:] = 1  # an untouched page is the one zero page, and is read from cache
        self._parts = np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)

    def gigabytes_per_second(self) -> float:
        """The median of a few passes."""
        rates: list[float] = []
        for _ in range(PASSES):
            start = time.perf_counter()
            list(self._pool.map(np.bitwise_xor.reduce, self._parts))
            rates.append(SIZE / (time.perf_counter() - start) / 1e9)
        return statistics.median(rates)


def cores() -> int:
    """The logical cores that this process may use."""
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    probe = Probe(cores())
    print(f"{cores()} threads:", *(f"{probe.gigabytes_per_second():.1f}" for _ in range(5)), "GB/s")
