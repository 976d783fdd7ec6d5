"""Streams as queues. Their work runs when the host waits for a stream or an event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Happening:
    """An event. `queue` is the stream that recorded it last; `over` is its time on the host's clock, in seconds."""

    timed: bool = True
    queue: Queue | None = None
    over: float | None = None
    waiting: int = 0  # records of it that are still queued


@dataclass(slots=True)
class Work:
    """An entry of a stream. It runs after the events in `after`."""

    run: Callable[[], None]
    after: tuple[Happening, ...] = ()


@dataclass(slots=True, eq=False)
class Queue:
    """A stream. While `captured` is a list, the stream is being captured, and new work is added to that list."""

    work: deque[Work] = field(default_factory=deque[Work])
    captured: list[Work] | None = None

    def put(self, run: Callable[[], None], after: tuple[Happening, ...] = ()) -> None:
        """Appends work to the stream, or to its capture."""
        target = self.work if self.captured is None else self.captured
        target.append(Work(run, after))

    def drain(self, until: Happening | None = None) -> None:
        """Runs all work in order, or the work up to an event. Work that fails is removed from the queue."""
        while self.work and (until is None or until.waiting):
            for event in self.work[0].after:
                if event.queue is not None and event.waiting and event.queue is not self:
                    event.queue.drain(event)
            self.work.popleft().run()

    def record(self, event: Happening) -> None:
        """Records the event: it completes after all work that is queued now."""
        event.queue, event.over = self, None
        event.waiting += 1

        def happen() -> None:
            event.waiting -= 1
            event.over = time.perf_counter()

        self.put(happen)
