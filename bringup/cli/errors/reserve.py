"""Memory for reporting a lack of memory: address space that is reserved at start, and released before an error is
printed.

Under a limit of `ulimit -v`, printing an error could otherwise run out of memory too. The reserve is never written, so
it uses no physical memory.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_NBYTES = 48 << 20
_held: list[mmap.mmap] = []


def hold() -> None:
    """Reserves the address space, once at start."""
    with suppress(OSError):  # without a reserve, errors are printed as far as possible
        _held.append(mmap.mmap(-1, _NBYTES))


def let_go() -> None:
    while _held:
        _held.pop().close()
