"""The event loop's side of the batch: accepts requests and delivers their results."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.compile.runtime.request import Request
from bringup.compile.serve.error_response import Refused, of_step
from bringup.compile.serve.worker import Ticket, Update, Worker

LONGEST_RETRY = 60  # seconds, in Retry-After
WEIGHT = 0.1  # of the latest sequence in the moving average of their times


class Sequences:
    """Requests that were accepted together. Iteration yields (index, update) as updates arrive, in one event loop."""

    def __init__(self, requests: Sequence[Request], worker: Worker) -> None:
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._worker, self._left = worker, set(range(len(requests)))
        self.tickets = [
            Ticket(request, lambda update, index=index: self._updates.put_nowait((index, update)))
            for index, request in enumerate(requests)
        ]

    async def __aiter__(self) -> AsyncIterator[tuple[int, Update]]:
        """Ends when every request has ended. Raises Refused if one fails."""
        while self._left:
            index, update = await self._updates.get()
            if index not in self._left:
                continue
            if update.error:
                raise of_step(update.error)
            if update.cancelled:
                raise Refused(503, "the server is shutting down and has cancelled the request", code="unavailable")
            if update.is_last:
                self._left.discard(index)
            yield index, update

    def close(self, index: int) -> None:
        """Ends a request whose further updates are not needed."""
        if index in self._left:
            self._left.discard(index)
            self._worker.cancel(self.tickets[index])


@dataclass(slots=True)
class Places:
    """The places of a request that is accepted but not yet passed to the worker."""

    count: int


class Intake:
    """Accepts up to `limit` sequences at a time, running and waiting, until it drains.

    Methods must be called in the event loop's thread, except `publish`, which the worker calls.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._open: set[Ticket] = set()
        self._reserved = 0  # places of requests that are being prepared
        self._loop = asyncio.get_running_loop()
        self._seconds = 1.0  # average time of a sequence, from when it is passed to the worker to its end
        self._empty = asyncio.Event()
        self.worker: Worker
        self.draining = False
        self.lost = False
        self._last: Update | None = None  # of all sequences, once the accepted ones are ended

    def __len__(self) -> int:
        """The number of sequences that were accepted and have not ended."""
        return len(self._open) + self._reserved

    def publish(self, updates: list[tuple[Ticket, Update]]) -> None:
        """Delivers updates in the event loop; may be called in any thread."""
        if updates and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def check(self, count: int = 1) -> None:
        """Raises Refused, 503 or 429, if `count` more sequences are not accepted now; 400 if they never are."""
        if self.lost:
            raise Refused(503, "the server is shutting down: its program has failed", code="unavailable")
        if self.draining:
            message = "the server is shutting down and accepts no more requests"
            raise Refused(503, message, code="draining", headers=_retry(1))
        if count > self.limit:
            message = f"{count} sequences exceed the {self.limit} that the server accepts at a time"
            raise Refused(400, message, param="n", code="invalid_value")
        if len(self) + count > self.limit:
            waiting = self._seconds * len(self) / self.limit
            message = f"the server has {len(self)} sequences and accepts {self.limit} at a time; try again later"
            raise Refused(429, message, code="queue_full", headers=_retry(waiting))

    @contextmanager
    def places(self, count: int) -> Generator[Places]:
        """Accepts a request of `count` sequences and reserves their places. Raises Refused as `check` does."""
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
        """Runs requests in their places. Those that have not ended when the block ends are cancelled."""
        accepted = Sequences(requests, self.worker)
        self._open.update(accepted.tickets)
        self._reserved -= places.count
        places.count = 0
        for ticket in accepted.tickets:
            self.worker.add(ticket)
        if self._last:  # the request was being prepared when the others were ended
            self._end(self._last)
        try:
            yield accepted
        finally:
            for ticket in self._open.intersection(accepted.tickets):
                self.worker.cancel(ticket)

    async def drain(self) -> None:
        """Accepts no more requests; returns when all accepted ones have ended."""
        self.draining = True
        if len(self):
            await self._empty.wait()

    def fail(self, error: BaseException | None = None) -> None:
        """Accepts no more requests: the worker has ended. With an `error`, it is abandoned, and its requests fail."""
        self.lost = True
        if error:
            self._end(Update(error=error))

    def cancel(self) -> None:
        """Accepts no more requests, and ends the accepted ones."""
        self.draining = True
        self._end(Update(cancelled=True))

    def _end(self, last: Update) -> None:
        self._last = last
        for ticket in self._open:
            self.worker.cancel(ticket)
        self._deliver([(ticket, last) for ticket in self._open])

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
    """The header Retry-After: seconds until the next attempt (RFC 9110, 10.2.3)."""
    return {"retry-after": str(min(max(math.ceil(seconds), 1), LONGEST_RETRY))}
