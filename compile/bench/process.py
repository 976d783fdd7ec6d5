"""An engine in a separate process, so that its memory and threads are measured alone."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bringup.compile.bench.contenders import opened
from bringup.compile.bench.timing import Timing
from bringup.diagnostics import BringupError, fail
from bringup.system.die_with_parent import die_with


class Process:
    """An engine that runs on `threads` processors. `name` and `dtype` are the engine's.

    Raises the errors of opening it.
    """

    def __init__(self, kind: str, settings: Mapping[str, Any], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        given = (there, kind, {**settings, "threads": threads}, os.getpid())
        self._process = context.Process(target=_serve, args=given, daemon=True)
        self._kind = kind
        self._process.start()
        there.close()
        self.name, self.dtype = self._received()

    def run(self, prompts: Sequence[Sequence[int]], new: int) -> Timing:
        """As `Contender.run`, in the process."""
        self._pipe.send(("run", prompts, new))
        return self._received()

    def peak_bytes(self) -> int:
        """The peak resident memory of the process, including files that it maps."""
        self._pipe.send(("peak",))
        return self._received()

    def _received(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            if code == -signal.SIGKILL:
                message = f"the process of {self._kind} was killed: its memory may not have sufficed"
                raise fail("BU903", message, help="give the machine more memory, or use a smaller model") from None
            raise RuntimeError(
                f"the process of {self._kind} ended with code {code}; its output has the reason"
            ) from None
        if isinstance(answer, BringupError):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, kind: str, settings: dict[str, Any], parent: int) -> None:
    """The main function of the process: answers requests until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    die_with(parent)
    _restrict(settings["threads"])
    try:
        contender = opened(kind, settings)
        pipe.send((contender.name, contender.dtype))
        while True:
            match pipe.recv():
                case ("run", prompts, new):
                    pipe.send(contender.run(prompts, new))
                case _:
                    pipe.send(_peak())
    except BringupError as error:
        pipe.send(error)
    except EOFError:
        return


def _restrict(threads: int) -> None:
    """Engines start as many threads as there are processors that they may use, each library by its own rule."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _peak() -> int:
    """The peak memory of this process alone; getrusage's includes that of the parent before exec."""
    status = Path("/proc/self/status")
    if status.is_file():
        words = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(words["VmHWM"].split()[0]) << 10
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found << 10
