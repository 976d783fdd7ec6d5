"""Streams as queues. Their work runs when the host waits for a stream or an event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident

Work = Callable[[], None]
THREAD_LOCAL, RELAXED = 1, 2  # CU_STREAM_CAPTURE_MODE_…


@dataclass(slots=True, eq=False)
class Happening:
    """An event. `queue` is the stream that recorded it last; `over` is its time on the host's clock, in seconds."""

    timed: bool = True
    queue: Queue | None = None
    over: float | None = None
    waiting: int = 0  # records of it that are still queued


@dataclass(slots=True)
class Capture:
    """Work that is being captured. `mode` is a CUstreamCaptureMode; a call that is not permitted makes it invalid."""

    mode: int
    thread: int = field(default_factory=get_ident)
    work: list[Work] = field(default_factory=list[Work])
    is_valid: bool = True

    def permits(self) -> bool:
        """Whether this thread may make a call that is unsafe during a capture, such as an allocation."""
        return self.mode == RELAXED or (self.mode == THREAD_LOCAL and self.thread != get_ident())


@dataclass(slots=True, eq=False)
class Queue:
    """A stream. While there is a `capture`, new work is added to that."""

    work: deque[Work] = field(default_factory=deque[Work])
    capture: Capture | None = None

    def put(self, run: Work) -> None:
        """Appends work to the stream, or to its capture."""
        (self.capture or self).work.append(run)

    def drain(self, until: Happening | None = None) -> None:
        """Runs all work in order, or the work up to an event. Work that fails is removed from the queue."""
        while self.work and (until is None or until.waiting):
            self.work.popleft()()

    def record(self, event: Happening) -> None:
        """Records the event: it completes after all work that is queued now."""
        event.queue, event.over = self, None
        event.waiting += 1

        def happen() -> None:
            event.waiting -= 1
            event.over = time.perf_counter()

        self.put(happen)
