"""The number of connections that a server holds. Each needs a file descriptor, and a process has few of them."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import NamedTuple

from bringup.diagnostics import fail

EXTRA, BURST = 128, 24  # connections
TURNS = 5  # of the event loop, from accepting a connection to closing it
RESERVED = 32  # descriptors: modules that are imported later, pipes of the processes that render chat templates
USUAL = 1024  # descriptors: the limit of most systems
SHARES = 6  # of the descriptors that are free; two of them are for connections that are not served
CROWDED = "crowded"  # the key of a connection's state, true beyond `Room.served`


class Room(NamedTuple):
    """`served`: connections whose requests are served. `rejected`: further ones, whose requests get an error; more are
    closed. `burst`: those that are accepted at a time, before they are counted.
    """

    served: int
    rejected: int
    burst: int

    @property
    def descriptors(self) -> int:
        """The largest number of descriptors that connections use; some are accepted before others are closed."""
        return self.served + self.rejected + TURNS * self.burst


def room_for(connections: int) -> Room:
    """The room for so many connections, or for fewer if the process may not open enough files.

    Raises the process's soft limit, as far as its hard limit permits. Raises BU917 if the limit is too low.
    """
    wanted = Room(connections, EXTRA, BURST)
    used = _lowest_free() + RESERVED
    free = _limit(used + wanted.descriptors) - used
    if free >= wanted.descriptors:
        return wanted
    share = free // SHARES
    if share < TURNS:
        message = f"this process may open {used + free} files, and a server needs {used + SHARES * TURNS}"
        raise fail("BU917", message, help=f"raise the limit: `ulimit -n {USUAL}`")
    return Room(min(free - 2 * share, connections), share, share // TURNS)


def _limit(needed: int) -> int:
    """The number of descriptors that the process may have, raised to `needed` if that is permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(OSError, ValueError):  # the system has a limit of its own, as macOS has
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _lowest_free() -> int:
    """The lowest descriptor that is free. Those below it are used."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor
