"""How kernels share the buffer `scratch`: counters that are zero between launches, then memory of any content."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.compile.kernels.call import SCRATCH, Pointer

COUNTERS = 1 << 16  # bytes
_ALIGNMENT = 256


def counters(nbytes: int) -> Pointer | None:
    """The counters of a kernel; None where it has more than there are."""
    return Pointer(SCRATCH) if nbytes <= COUNTERS else None


def workspace(sizes: Sequence[int], begin: int = COUNTERS) -> tuple[list[Pointer], int]:
    """Memory of so many bytes each, and the bytes of scratch up to its end. Before `begin` it is that of others."""
    pointers: list[Pointer] = []
    end = begin
    for nbytes in sizes:
        pointers.append(Pointer(SCRATCH, end))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return pointers, end
