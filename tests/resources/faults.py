"""Fails the k-th call of a function by which a compile writes, as a full or faulty disk would."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bringup.compile.bundle import folder

ROOT = Path(__file__).parent.parent.parent
CALLS = ("write", "pwrite", "ftruncate", "fsync", "rename", "replace", "mkdir", "link")


@dataclass
class Fault:
    """`at` counts from 1; `calls` names those that were made, `struck` is the one that failed."""

    at: int
    code: int
    calls: list[str] = field(default_factory=list)
    struck: str = ""

    def count(self, name: str, path: object) -> None:
        frame = sys._getframe(2)
        while frame and not frame.f_code.co_filename.startswith(str(ROOT)):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(str(ROOT / "tests")):
            return
        place = str(Path(f"/proc/self/fd/{path}").readlink()) if isinstance(path, int) else os.fsdecode(str(path))
        self.calls.append(f"{name} {place}")
        if len(self.calls) == self.at:
            self.struck = self.calls[-1]
            names = () if isinstance(path, int) else (place,)
            raise OSError(self.code, os.strerror(self.code), *names)


@contextmanager
def fault(at: int, code: int) -> Iterator[Fault]:
    """In the block, the call number `at` raises OSError(code); 0 makes none fail."""
    found = Fault(at, code)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, _counted(found, name, getattr(os, name)))
        patch.setattr(folder, "exchange", _counted(found, "exchange", folder.exchange))
        patch.setattr(os, "open", _opening(found, os.open, 1, lambda flags: flags & os.O_CREAT))
        patch.setattr(io, "open", _opening(found, io.open, 1, lambda mode: set(mode) & set("wax+")))
        yield found


def _counted(found: Fault, name: str, real):
    def call(first, *rest, **named):
        found.count(name, first)
        return real(first, *rest, **named)

    return call


def _opening(found: Fault, real, position: int, writes):
    def call(*words, **named):
        if len(words) > position and writes(words[position]):
            found.count("open", words[0])
        return real(*words, **named)

    return call
