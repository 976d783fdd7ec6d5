"""A compile with --dump-dir has other flags than its key says: it is neither taken from the cache nor put there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bringup.compile.cache.store import Store
from bringup.compile.targets import iree_compiler, iree_cpu
from bringup.compile.targets.module_store import ModuleStore

OPTIONS = {name: option.default for name, option in iree_cpu.IREE_CPU.options.items()}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """In place of IREE's: each compile gives another module, and is noted."""
    found: list[bytes] = []

    @contextmanager
    def compilation(*args: Any) -> Generator[Any]:
        found.append(b"module %d" % len(found))
        yield SimpleNamespace(result=lambda: found[-1])

    monkeypatch.setattr(iree_compiler, "Compilation", compilation)
    monkeypatch.setattr(iree_cpu, "_text", lambda program, dump_dir: "text")
    return found


def test_a_dump_bypasses_the_cache(compiles: list[bytes], tmp_path: Path) -> None:
    store = ModuleStore(Store(tmp_path / "cache"), lambda: {"tools": "1"})

    def module(dump_dir: Path | None) -> bytes:
        with iree_cpu.IREE_CPU.lower(None, tmp_path, OPTIONS, store, dump_dir) as finish:  # type: ignore[arg-type]
            finish()
        return (tmp_path / iree_cpu.MODULE).read_bytes()

    dumps = tmp_path / "dumps"
    assert [module(dumps), module(None), module(None), module(dumps), module(None)] == [
        b"module 0", b"module 1", b"module 1", b"module 2", b"module 1"
    ]  # fmt: skip
    assert len(compiles) == 3
