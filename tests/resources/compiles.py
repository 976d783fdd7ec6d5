"""Compiles of a tiny model in child processes, and the files that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bringup
from bringup.compile.bundle.folder import check_files, read_manifest
from bringup.graphs.gpt2 import SIZES

TINY = SIZES["gpt2"] | {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 64, "vocab_size": 21}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), peak memory, what it said."""

    code: int
    peak: int
    seconds: float
    said: str


class Nursery:
    """See nursery.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nursery.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent), "BRINGUP_COMPILE_CACHE": ""},
        )  # fmt: skip

    def start(self, *words: str | Path, **options: object) -> Running:
        environment = {"XDG_CACHE_HOME": str(self.folder / "cache"), "TMPDIR": str(temporary(self.folder))}
        environment |= options.pop("environment", {})
        errors = tempfile.mktemp(dir=self.folder)
        request = {"words": [str(word) for word in words], "errors": errors, "environment": environment, **options}
        return Running(self, self.ask(request), Path(errors))

    def run(self, *words: str | Path, **options: object) -> Ended:
        return self.start(*words, **options).wait()

    def ask(self, request: dict) -> object:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass(frozen=True)
class Running:
    nursery: Nursery
    pid: int
    errors: Path

    def wait(self) -> Ended:
        return Ended(
            **self.nursery.ask({"wait": self.pid}), said=self.errors.read_text() if self.errors.exists() else ""
        )


def temporary(folder: Path) -> Path:
    """Where children keep temporary files; it should be empty when they have ended."""
    (folder / "tmp").mkdir(exist_ok=True)
    return folder / "tmp"


def tokens_of(bundle: Path) -> list[int]:
    """What a bundle says, after every file in it was compared with its manifest."""
    check_files(bundle, read_manifest(bundle))
    return list(bringup.load(bundle).generate([1, 2, 3], max_new_tokens=8))


def processes_on(folder: Path) -> list[str]:
    """Commands under way that name a path below `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode("utf-8", "replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command and entry.parent.name != str(os.getpid()):
            found.append(command)
    return found


def names(folder: Path) -> list[str]:
    """What lies in a folder, but for the one that torch makes in every TMPDIR."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_"))
