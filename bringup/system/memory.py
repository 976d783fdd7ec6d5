"""The memory that this process can still allocate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")  # the process's groups, see cgroups(7)
MOUNTS = Path("/sys/fs/cgroup")


class _Version(NamedTuple):
    """Where a version of control groups is mounted, its file with the limit, and the key of memory.stat for anonymous
    memory, of a group and all groups in it.
    """

    mounts: tuple[Path, ...]
    limit: str
    used: str


def available_bytes() -> int | None:
    """Bytes that programs can have without swapping; None if the system does not report it.

    `MemAvailable` of Linux (man 5 proc_meminfo), or what is left of the limit of a control group if that is less: of
    this process's group, or of one that contains it. Only anonymous memory counts: the pages of files are freed.
    """
    found: list[int] = []
    with suppress(OSError):
        line = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text("ascii"), re.MULTILINE)
        found += [1024 * int(line[1])] if line else []
    for version, path in _groups():
        for mount in version.mounts:
            folder = mount / path
            found += (left for each in (folder, *folder.parents) if each.is_relative_to(mount)
                      for left in _left(each, version))  # fmt: skip
    return min(found, default=None)


def _groups() -> Iterator[tuple[_Version, str]]:
    """The paths of the process's groups with a limit on memory.

    A container that does not see the groups around it has its own group at the mount, whatever its path.
    https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
    """
    second = _Version((MOUNTS, MOUNTS / "unified"), "memory.max", "anon")
    first = _Version((MOUNTS / "memory",), "memory.limit_in_bytes", "total_rss")
    paths = {second: "", first: ""}
    with suppress(OSError):
        for line in GROUPS.read_text("utf-8", "surrogateescape").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                paths[second if number == "0" else first] = "" if ".." in path.split("/") else path.strip("/")
    yield from paths.items()


def _left(group: Path, version: _Version) -> Iterator[int]:
    """What is left of the limit of a group, if it has one."""
    with suppress(OSError):
        limit = (group / version.limit).read_text("ascii").strip()
        used = re.search(rf"^{version.used} (\d+)", (group / "memory.stat").read_text("ascii"), re.MULTILINE)
        if limit.isdecimal() and used:
            yield max(int(limit) - int(used[1]), 0)
