"""Streams as queues of work that runs once something waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Happening:
    """An event: recorded in a stream, and then over at a time of the host's clock."""

    queue: Queue | None = None
    over: float | None = None
    waiting: int = 0  # records that are still in a queue


@dataclass(slots=True)
class Work:
    """An entry of a stream."""

    run: Callable[[], None]
    after: tuple[Happening, ...] = ()


@dataclass(slots=True, eq=False)
class Queue:
    """A stream. While `captured` is a list, work goes there and not into the stream."""

    work: deque[Work] = field(default_factory=deque[Work])
    captured: list[Work] | None = None

    def put(self, run: Callable[[], None], after: tuple[Happening, ...] = ()) -> None:
        """Adds work to the end, or to the capture."""
        target = self.work if self.captured is None else self.captured
        target.append(Work(run, after))

    def drain(self, until: Happening | None = None) -> None:
        """Runs all work in order, or up to an event; work that failed is out of the queue."""
        while self.work and (until is None or until.waiting):
            for event in self.work[0].after:
                if event.queue is not None and event.waiting and event.queue is not self:
                    event.queue.drain(event)
            self.work.popleft().run()

    def record(self, event: Happening) -> None:
        """The event happens when what is in the stream by now is done."""
        event.queue, event.over = self, None
        event.waiting += 1

        def happen() -> None:
            event.waiting -= 1
            event.over = time.perf_counter()

        self.put(happen)
