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
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    if info is not None:
        (tmp_path / "meminfo").write_text(info)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text(f"anon {anon}\nfile 123456\n")
    assert memory.available_bytes() == found
