"""The memory that is available, as Linux and a control group report it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.system import memory

INFO = "MemTotal:       24684088 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n"


@pytest.mark.parametrize(
    ("info", "limit", "anon", "found"),
    [
        (INFO, None, None, 20_480_000_000),
        (INFO, "max", 5, 20_480_000_000),
        (INFO, "1000000", 400_000, 600_000),
        (INFO, "1000000", 1_400_000, 0),
        (INFO, "99000000000", 0, 20_480_000_000),
        (None, "1000000", 0, 1_000_000),
        (None, None, None, None),
    ],
)
def test_available_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    info: str | None, limit: str | None, anon: int | None, found: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "MOUNTS", tmp_path)
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    if info is not None:
        (tmp_path / "meminfo").write_text(info)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text(f"anon {anon}\nfile 123456\n")
    assert memory.available_bytes() == found


FIRST = "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n"  # version 1, as docker used it
SECOND = "0::/system.slice/bringup.service\n"  # version 2, as systemd uses it
OUTSIDE = "0::/../other\n"  # a group that this namespace does not show
UNLIMITED = 9223372036854771712  # version 1 has no word for it


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        (SECOND, {"system.slice/bringup.service/memory.max": (900, 100)}, 800),
        (SECOND, {"system.slice/bringup.service/memory.max": ("max", 1), "system.slice/memory.max": (500, 200)}, 300),
        (SECOND, {"system.slice/other.service/memory.max": (900, 100)}, 20_480_000_000),
        (SECOND, {"memory.max": (900, 100)}, 800),  # a container whose group is at the mount
        (OUTSIDE, {"memory.max": (900, 100)}, 800),
        (FIRST, {"memory/a/b/memory.limit_in_bytes": (UNLIMITED, 1), "memory/a/memory.limit_in_bytes": (70, 30)}, 40),
        (FIRST, {"memory/memory.limit_in_bytes": (70, 30)}, 40),
        (FIRST, {"unified/memory.max": (70, 30)}, 40),
    ],
)
def test_the_groups_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    groups: str, limits: dict[str, tuple[int | str, int]], found: int,
) -> None:  # fmt: skip
    for name, text in (("MEMINFO", INFO), ("GROUPS", groups)):
        monkeypatch.setattr(memory, name, tmp_path / name)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "MOUNTS", tmp_path / "mounts")
    for path, (limit, used) in limits.items():
        file = tmp_path / "mounts" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
        (file.parent / "memory.stat").write_text(f"rss 5\nanon {used}\ntotal_rss {used}\nfile 7\n")
    assert memory.available_bytes() == found
