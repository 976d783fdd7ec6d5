"""Room to say that there is no memory: address space held back from the start, and let go of before an error is told.

Under a limit of `ulimit -v` the words of an error, and what renders them, would otherwise find no memory either. Nobody
writes to it, so that it takes none of the machine's.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_NBYTES = 48 << 20
_held: list[mmap.mmap] = []


def hold() -> None:
    """Once, at the start."""
    with suppress(OSError):  # where not even this is to be had, errors are told as well as can be
        _held.append(mmap.mmap(-1, _NBYTES))


def let_go() -> None:
    while _held:
        _held.pop().close()
