"""The parent's side of a worker process, and the load of the machine meanwhile. Linux only: it reads /proc."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


class WorkerError(RuntimeError):
    """The worker ended; the message is the last it said."""


class Worker:
    """A process that runs benchmarks.workers and waits between commands.

    OpenMP's waiting policy is left alone: a passive one would slow the peers, and without it idle threads sleep
    after some milliseconds (0.00 cores used by each idle contender half a second later).
    """

    def __init__(self, name: str, dtype: str, path: Path, tokens: int, env: Mapping[str, str]) -> None:
        self._log = TemporaryFile("w+")  # noqa: SIM115  open until `close`
        self.started = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.workers", name, dtype, str(path), str(tokens)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **env},
        )
        try:
            self._answer()
            self.import_seconds = time.perf_counter() - self.started
            self._answer()
        except BaseException:
            self.close()
            raise
        self.load_seconds = time.perf_counter() - self.started - self.import_seconds

    def ask(self, command: str) -> tuple[float, list[int]]:
        """Seconds until the answer, and the answer's tokens."""
        assert self._process.stdin
        start = time.perf_counter()
        try:
            print(command, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        answer = self._answer()
        return time.perf_counter() - start, answer

    def cpu_seconds(self) -> float:
        """What all its threads have used so far."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def close(self) -> None:
        """Lets the process end."""
        self._process.communicate()  # closes its stdin
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _answer(self) -> list[int]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return next(reversed(errors or lines), f"it ended with code {self._process.returncode}")


class Others:
    """The share of the machine's cores that processes other than a worker use, since this was made."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._start = self._now()

    def share(self) -> float:
        busy, total, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(busy - own, 0.0) / total if total else 0.0

    def _now(self) -> tuple[float, float, float]:
        with Path("/proc/stat").open() as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]  # user … steal; guests are in user
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / _TICKS, sum(ticks) / _TICKS, self._worker.cpu_seconds()
