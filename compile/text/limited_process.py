"""Processes a possibly malicious file in a separate process with limits on time and memory.

Time is the processor's, so that a busy machine refuses nothing. The child gets no more than what it is given on stdin:
of this process's environment only what Python needs to start. Its stderr is not shown.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

WALL = 60  # seconds until a child that uses no processor time is given up
QUIET = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1", "RUST_BACKTRACE": "0"}  # fewer reserved addresses


class LimitExceeded(Exception):
    """The child was stopped, or died: the message says of what."""


def confined(script: str, request: bytes, *, seconds: float, megabytes: int) -> bytes:
    """What `script`, a file in this folder, writes to stdout when it reads `request`. Raises LimitExceeded."""
    from bringup.system.environment import minimal  # not at the top: the child, which runs this file, needs none of it

    here = Path(__file__)
    command = [sys.executable, "-P", str(here), str(here.with_name(script)), str(seconds), str(megabytes << 20)]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=WALL, check=False, env=minimal(**QUIET)
        )
    except subprocess.TimeoutExpired:
        raise LimitExceeded(f"took over {WALL} s") from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode in (-_signal("SIGPROF"), -_signal("SIGXCPU")):
        raise LimitExceeded(f"took over {seconds:g} s of processor time")
    raise LimitExceeded(f"took over {megabytes} MB of memory, or crashed (exit code {done.returncode})")


def _signal(name: str) -> int:
    import signal

    return int(getattr(signal, name, 0))


def _main(script: str, seconds: str, nbytes: str) -> None:
    """The child: limits first, then the script."""
    try:
        import resource
        import signal
    except ImportError:  # Windows has neither; the wall time is left
        pass
    else:
        for limit, most in ((resource.RLIMIT_AS, int(nbytes)), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(limit, (most, most))
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # SIGPROF ends a process that does not expect it
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
