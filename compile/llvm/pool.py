"""Pool: the threads that run a step, and their memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from bringup.compile.llvm.ir.threads import END, MOST_PARTS, STEP, WORDS, WORK, Word
from bringup.system.processors import processors

if TYPE_CHECKING:
    from bringup.compile.llvm.module import Loaded

ALIGNMENT = 4096  # bytes, the page size: no two threads write the same cache line
SPINS = 4000  # times that a waiting thread reads TURN before it sleeps: about 50 µs
LEAST_PART, PART = 32 << 10, 256 << 10  # bytes of a part: the least; the least with more parts than threads
PARTS_EACH = 4  # parts of a large launch per thread: faster threads run the parts that a slow one has not begun
_LOCK = 256  # bytes: larger than any mutex or condition variable of POSIX threads


def part_count(nbytes: int, threads: int) -> int:
    """The number of parts of a launch that reads and writes `nbytes` bytes: 1 to MOST_PARTS."""
    least = min(threads, nbytes // LEAST_PART)
    parts = max(1, least, min(PARTS_EACH * threads, nbytes // PART)) if threads > 1 else 1
    return min(parts, MOST_PARTS)


def aligned(nbytes: int) -> np.ndarray:
    """Zeros [nbytes] in uint8, aligned to a page. Pages that are never written use no memory.

    Huge pages are used if the system has them. The keys of one head are a row apart, so reading them touches many
    pages, and a processor caches the addresses of few (TLB).
    """
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, nbytes)


class Pool:
    """`threads` threads, including the caller's. Each has `scratch` bytes of scratch memory.

    Workers wait in compiled code, without Python's lock, and sleep if there is no work. They end with `close`, or with
    the last reference to the pool.
    """

    def __init__(self, loaded: Loaded, threads: int, scratch: int) -> None:
        size = -(-max(scratch, 1) // ALIGNMENT) * ALIGNMENT
        self._memory = memory = aligned(size * threads)
        self._job = job = aligned(8 * WORDS).view(np.uint64)
        locks = _locks()
        job[Word.SPINS] = SPINS if threads <= processors() else 0
        job[[Word.MUTEX, Word.CONDITION]] = locks[0].ctypes.data, locks[1].ctypes.data
        job[[Word.SCRATCH, Word.SCRATCH_SIZE]] = memory.ctypes.data, size
        self._step, end = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address(name)) for name in (STEP, END))
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address(WORK))
        workers = [threading.Thread(target=work, args=(job.ctypes.data, n), daemon=True) for n in range(1, threads)]
        for worker in workers:
            worker.start()

        self._close = weakref.finalize(self, _close, job, end, workers, (loaded, memory, locks))

    def run(self, launches: int, count: int) -> None:
        """Runs `count` launches of LAUNCH 8-byte words each, stored at the address `launches`."""
        assert self._close.alive, "the pool is closed, and with it the compiled code"
        self._job[[Word.LAUNCHES, Word.COUNT]] = launches, count
        self._step(self._job.ctypes.data)

    def close(self) -> None:
        """Ends the workers. Can be called again; no step may follow."""
        self._close()


def _close(
    job: np.ndarray, end: Callable[[int], None], workers: list[threading.Thread], in_use: tuple[object, ...]
) -> None:
    """Ends the workers. `in_use` keeps the memory that they use until then."""
    end(job.ctypes.data)
    for worker in workers:
        worker.join()
    del in_use


def _locks() -> tuple[np.ndarray, np.ndarray]:
    """A mutex and a condition variable of POSIX threads. Raises OSError if their initialisation fails."""
    library = ctypes.CDLL(None)
    mutex, condition = aligned(_LOCK), aligned(_LOCK)
    for name, memory in (("pthread_mutex_init", mutex), ("pthread_cond_init", condition)):
        if status := getattr(library, name)(ctypes.c_void_p(memory.ctypes.data), None):
            raise OSError(status, os.strerror(status))
    return mutex, condition
