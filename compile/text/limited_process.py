"""Processes a possibly malicious file in a separate process with limits on time and memory.

The time limit is processor time, so it does not depend on the load of the machine. The child receives only its stdin,
and the environment variables that Python needs to start. Its stderr is discarded.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

WALL = 60  # seconds until a child that uses no processor time is ended
QUIET = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1", "RUST_BACKTRACE": "0"}  # fewer reserved addresses


class LimitExceeded(Exception):
    """The child exceeded a limit, or crashed; the message states which."""


def confined(script: str, request: bytes, *, seconds: float, megabytes: int) -> bytes:
    """The stdout of `script`, a file in this folder, with `request` as its stdin.

    Raises LimitExceeded if it needs more processor time or memory, or crashes.
    """
    from bringup.system.environment import minimal  # not at the top: the child runs this file and does not need it

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
    """The child: sets the limits, then runs the script."""
    try:
        import resource
        import signal
    except ImportError:  # Windows has neither; only the wall time is limited
        pass
    else:
        for limit, most in ((resource.RLIMIT_AS, int(nbytes)), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(limit, (most, most))
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # SIGPROF ends a process without a handler
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
