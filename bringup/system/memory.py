"""The memory that this process can still allocate."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # of version 2, as a container sees its own


def available_bytes() -> int | None:
    """Bytes that programs can have without swapping; None if the system does not report it.

    `MemAvailable` of Linux (man 5 proc_meminfo), or what is left of the control group's limit if that is less: its
    `memory.max` less the anonymous memory of `memory.stat` (https://docs.kernel.org/admin-guide/cgroup-v2.html).
    """
    found: int | None = None
    with suppress(OSError):
        line = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text("ascii"), re.MULTILINE)
        found = 1024 * int(line[1]) if line else None
    with suppress(OSError):
        limit = (GROUP / "memory.max").read_text("ascii").strip()
        used = re.search(r"^anon (\d+)", (GROUP / "memory.stat").read_text("ascii"), re.MULTILINE)
        if limit.isdecimal() and used:
            left = max(int(limit) - int(used[1]), 0)
            found = left if found is None else min(found, left)
    return found
