"""The layout of the buffer `scratch`: counters, which are zero between launches, then uninitialised memory."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.compile.kernels.call import SCRATCH, Pointer

COUNTERS = 1 << 16  # bytes
_ALIGNMENT = 256


def counters(nbytes: int) -> Pointer | None:
    """The address of a kernel's counters; None if it needs more than `COUNTERS` bytes."""
    return Pointer(SCRATCH) if nbytes <= COUNTERS else None


def workspace(sizes: Sequence[int], begin: int = COUNTERS) -> tuple[list[Pointer], int]:
    """Addresses of areas of `sizes` bytes after `begin`, and the bytes of scratch up to their end."""
    pointers: list[Pointer] = []
    end = begin
    for nbytes in sizes:
        pointers.append(Pointer(SCRATCH, end))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return pointers, end
