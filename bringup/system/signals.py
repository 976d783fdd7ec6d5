"""Signals that end the program, as an exception in the main thread: running work is cleaned up as after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager


class Stopped(KeyboardInterrupt):
    """A signal that ends the program; `exit_code` is the one that shells expect."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


class _Stops:
    """Raises the first signal: at once, or after the outermost `signals_deferred` block. Later ones are ignored."""

    def __init__(self) -> None:
        self.depth = 0
        self.signum = 0
        self.raised = False

    def __call__(self, signum: int, frame: object) -> None:
        self.signum = self.signum or signum
        self.deliver()

    def deliver(self) -> None:
        if self.signum and not self.depth and not self.raised:
            self.raised = True
            raise Stopped(self.signum)


_stops = _Stops()


def catch() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise Stopped; those that the parent had ignored stay ignored (nohup)."""
    _stops.__init__()
    for signum in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _stops)


def was_signalled() -> bool:
    """Whether a signal has been raised: later errors may come from an interrupted library."""
    return _stops.raised


def report_stop(error: BaseException) -> int:
    """Prints the signal that stopped the program to stderr. Returns the exit code: 128 + the signal's number."""
    stopped = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, Stopped)), None)
    stopped = stopped or (Stopped(_stops.signum) if was_signalled() else None)
    sys.stderr.write(f"{stopped or 'stopped by SIGINT'}; partial files were removed\n")
    return stopped.exit_code if stopped else 128 + signal.SIGINT


@contextmanager
def signals_deferred() -> Generator[None]:
    """Defers signals until the block has ended. For short atomic work."""
    _stops.depth += 1
    try:
        yield
    finally:
        _stops.depth -= 1
        _stops.deliver()
