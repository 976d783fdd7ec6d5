"""The event loop's side of the batch: accepts requests, and delivers their results."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.compile.runtime.request import Request
from bringup.compile.serve.refused import Refused, of_step
from bringup.compile.serve.worker import Ticket, Update, Worker

LONGEST_RETRY = 60  # seconds
WEIGHT = 0.1  # of the latest request in the mean of their times


class Sequences:
    """Requests that were accepted together; their updates, by index, as they come. Of one event loop."""

    def __init__(self, requests: Sequence[Request], worker: Worker) -> None:
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._worker, self._left = worker, set(range(len(requests)))
        self.tickets = [
            Ticket(request, lambda update, index=index: self._updates.put_nowait((index, update)))
            for index, request in enumerate(requests)
        ]

    async def __aiter__(self) -> AsyncIterator[tuple[int, Update]]:
        """Until every request has ended. Raises Refused where one fails."""
        while self._left:
            index, update = await self._updates.get()
            if index not in self._left:
                continue
            if update.error:
                raise of_step(update.error)
            if update.cancelled:
                raise Refused(503, "the server ends, and has cancelled the request", code="unavailable")
            if update.is_last:
                self._left.discard(index)
            yield index, update

    def close(self, index: int) -> None:
        """Ends a request, of which no more updates are needed."""
        if index in self._left:
            self._left.discard(index)
            self._worker.cancel(self.tickets[index])


@dataclass(slots=True)
class Places:
    """Of a request that is accepted and not handed over yet."""

    count: int


class Intake:
    """Accepts as many sequences as run and wait at a time, until it drains.

    The methods are of the event loop's thread, but for `publish`, which the worker calls.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._open: set[Ticket] = set()
        self._reserved = 0  # places of requests that are being prepared
        self._loop = asyncio.get_running_loop()
        self._seconds = 1.0  # that a sequence takes, from when it is handed over to its end
        self._empty = asyncio.Event()
        self.worker: Worker
        self.draining = False
        self.lost = False

    def __len__(self) -> int:
        """Sequences that were accepted and have not ended."""
        return len(self._open) + self._reserved

    def publish(self, updates: list[tuple[Ticket, Update]]) -> None:
        """Has the loop deliver updates."""
        if updates and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def check(self, count: int = 1) -> None:
        """Raises Refused, 503 or 429, where so many more sequences are not accepted now; 400 where they never are."""
        if self.lost:
            raise Refused(503, "the server ends: its program has failed", code="unavailable")
        if self.draining:
            raise Refused(503, "the server ends, and takes no more requests", code="draining", headers=_retry(1))
        if count > self.most:
            message = f"{count} sequences are more than the server takes at a time, {self.most}"
            raise Refused(400, message, param="n", code="invalid_value")
        if len(self) + count > self.most:
            waiting = self._seconds * len(self) / self.most
            message = f"the server has {len(self)} sequences, and takes {self.most} at a time; try again later"
            raise Refused(429, message, code="queue_full", headers=_retry(waiting))

    @contextmanager
    def places(self, count: int) -> Generator[Places]:
        """Accepts a request of so many sequences: from here on it is answered. Raises Refused as `check` does."""
        self.check(count)
        places = Places(count)
        self._reserved += count
        try:
            yield places
        finally:
            self._reserved -= places.count
            self._settle()

    @contextmanager
    def sequences(self, requests: Sequence[Request], places: Places) -> Generator[Sequences]:
        """Has requests run in their places. Those that have not ended with the block are cancelled."""
        accepted = Sequences(requests, self.worker)
        self._open.update(accepted.tickets)
        self._reserved -= places.count
        places.count = 0
        for ticket in accepted.tickets:
            self.worker.add(ticket)
        try:
            yield accepted
        finally:
            for ticket in self._open.intersection(accepted.tickets):
                self.worker.cancel(ticket)

    async def drain(self) -> None:
        """Accepts no more, and returns once all that were accepted have ended."""
        self.draining = True
        if len(self):
            await self._empty.wait()

    def fail(self, error: BaseException | None = None) -> None:
        """Accepts no more: the worker has ended. With an `error` it is abandoned, and all that it has fails."""
        self.lost = True
        if error:
            self._deliver([(ticket, Update(error=error)) for ticket in self._open])

    def _deliver(self, updates: list[tuple[Ticket, Update]]) -> None:
        for ticket, update in updates:
            ticket.receive(update)
            if update.is_last:
                self._open.discard(ticket)
                if not (update.error or update.cancelled):
                    self._seconds += WEIGHT * (time.monotonic() - ticket.since - self._seconds)
        self._settle()

    def _settle(self) -> None:
        if self.draining and not len(self):
            self._empty.set()


def _retry(seconds: float) -> dict[str, str]:
    """Seconds until it is worth to try again (RFC 9110, 10.2.3)."""
    return {"retry-after": str(min(max(math.ceil(seconds), 1), LONGEST_RETRY))}
