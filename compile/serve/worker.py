"""The thread that owns the batch: only it opens, steps and closes it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.drawn import RequestFailed
from bringup.compile.runtime.lora.cache import CacheFigures
from bringup.compile.runtime.request import Event, Reason, Request
from bringup.compile.runtime.scores import Score
from bringup.compile.runtime.stats import DraftStats
from bringup.diagnostics import BringupError, fail

MOST_FAILURES = 3  # consecutive failed steps that end the server; on a lost device every step fails
# The exceptions of a step that the program, the device or lack of memory cause. Any other is a bug of bringup and ends
# the thread, and with it the server.
FAULTS = (BringupError, RuntimeError, MemoryError, OSError, ValueError, ArithmeticError, LookupError)

log = logging.getLogger("bringup.serve")


@dataclass(slots=True, eq=False)
class Ticket:
    """A request and its receiver of updates; see `Worker`.

    `number` is its id in the batch, None before it is added; only the worker's thread reads it. `since`: when it was
    created, in seconds of `time.monotonic`.
    """

    request: Request
    receive: Callable[[Update], None]
    number: int | None = None
    since: float = field(default_factory=time.monotonic)


class Update(NamedTuple):
    """A new token of a request, or its end, or both.

    `reason`, `score` and `prompt` (the scores of its tokens) are those of `runtime.request.Event`. `error`: the request
    failed with it; `cancelled`: `cancel` ended it.
    """

    token: int | None = None
    reason: Reason | None = None
    error: BaseException | None = None
    cancelled: bool = False
    score: Score | None = None
    prompt: tuple[Score | None, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether no update of the request follows."""
        return bool(self.reason or self.error or self.cancelled)


class Figures(NamedTuple):
    """Figures of the batch after the latest step: running and waiting requests, blocks, counts since the start.

    `draft` are the sums over all requests, zeros without a draft.
    """

    running: int
    waiting: int
    blocks: int
    blocks_used: int
    preemptions: int
    shared_tokens: int
    steps: int
    failures: int
    loras: CacheFigures
    draft: DraftStats


class Worker:
    """A thread that runs requests. Any thread may call `add` and `cancel`, and read `figures`.

    `publish` is called in the thread with the updates of one step. Every ticket gets exactly one last update, also if
    the thread ends; then `ended` is done, with the error, if any, as its exception. The batch is opened in the thread,
    because the context of a device driver may belong to a thread.
    """

    def __init__(self, opening: Callable[[], Batch], publish: Callable[[list[tuple[Ticket, Update]]], None]) -> None:
        self._opening, self._publish = opening, publish
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._stopped = False
        self._last: Update | None = None  # the update of all tickets that are added after the thread has ended
        self._closing = Lock()
        self._steps = self._failures = self._failures_in_a_row = 0
        self._thread = Thread(target=self._run, name="batch", daemon=True)
        self._step_began: float | None = None
        self._opened: Future[Batch] = Future()
        self.ended: Future[None] = Future()
        self.figures: Figures

    def start(self) -> Batch:
        """Starts the thread; returns the batch when it is open, for methods that any thread may call. Raises the
        errors of `opening`.
        """
        self._thread.start()
        return self._opened.result()

    @property
    def step_seconds(self) -> float:
        """The duration of the current step so far, in seconds; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def add(self, ticket: Ticket) -> None:
        """Queues a request, which runs when the batch has room."""
        with self._closing:
            last = self._last
            if last is None:
                self._commands.put(lambda: self._waiting.append(ticket))
        if last is not None:
            self._publish([(ticket, last)])

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request and frees its blocks; no effect if it has ended."""
        self._commands.put(lambda: self._cancel(ticket))

    def stop(self) -> None:
        """Ends the thread after its current step. Unfinished requests are cancelled."""
        self._commands.put(self._stop)
        if not self.ended.done():
            self._thread.join()

    def abandon(self, error: BaseException) -> None:
        """Abandons the thread in a step that does not end. It ends with the process; tickets get no more updates."""
        with self._closing:
            self._last = Update(error=error)
            if not self.ended.done():
                self.ended.set_exception(error)

    # --- in the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._serve()
        except BaseException as raised:
            error = raised
        with self._closing:
            if self.ended.done():  # it was abandoned
                return
            if error:
                self.ended.set_exception(error)
            else:
                self.ended.set_result(None)

    def _serve(self) -> None:
        try:
            with self._opening() as batch:
                self._batch, self._most = batch, batch.interface.max_batch_size
                self._count()
                self._opened.set_result(batch)
                while self._obey():
                    self._fill()
                    if batch:
                        self._step()
        except BaseException as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            self._end(Update(error=error))
            raise
        self._end(Update(cancelled=True))

    def _obey(self) -> bool:
        """Executes commands; waits for one if there are no requests. Returns False when the thread must end."""
        while not self._stopped:
            try:
                command = self._commands.get(block=not (self._batch or self._waiting))
            except Empty:
                return True
            command()
        return False

    def _fill(self) -> None:
        """Adds requests to the batch, as many as it runs at a time. Those that wait here survive a failed step."""
        while self._waiting and len(self._running) < self._most:
            ticket = self._waiting.popleft()
            try:
                ticket.number = self._batch.add(ticket.request)
            except FAULTS as error:
                log.error("a request could not be added", exc_info=error)
                self._report([(ticket, Update(error=error))])
            else:
                self._running[ticket.number] = ticket

    def _step(self) -> None:
        self._steps += 1
        self._step_began = time.monotonic()
        try:
            events = self._batch.step()
        except RequestFailed as error:
            self._fail([error.request], error)
            return
        except FAULTS as error:
            self._failures_in_a_row += 1
            self._fail(list(self._running), error)
            if self._failures_in_a_row == MOST_FAILURES:
                raise _broken(error) from error
            return
        finally:
            self._step_began = None
        self._failures_in_a_row = 0
        updates = [(self._running[event.id], _update(event)) for event in events]
        for event in events:
            if event.reason:
                del self._running[event.id]
        self._report(updates)

    def _fail(self, numbers: Iterable[int], error: BaseException) -> None:
        """Ends requests that failed; the others are recomputed from their tokens."""
        self._failures += 1
        log.error("a step failed", exc_info=error)
        failed = [self._running.pop(number) for number in numbers]
        for ticket in failed:
            assert ticket.number is not None
            self._batch.remove(ticket.number)
        self._report([(ticket, Update(error=error)) for ticket in failed])

    def _cancel(self, ticket: Ticket) -> None:
        if ticket.number is None:
            if ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
        elif self._running.pop(ticket.number, None) is None:
            return
        else:
            self._batch.remove(ticket.number)
        self._report([(ticket, Update(cancelled=True))])

    def _stop(self) -> None:
        self._stopped = True

    def _end(self, last: Update) -> None:
        """Publishes the last update of every ticket."""
        with self._closing:
            self._last = last
            while not self._commands.empty():
                self._commands.get()()
        left = [*self._running.values(), *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._publish([(ticket, last) for ticket in left])

    def _report(self, updates: list[tuple[Ticket, Update]]) -> None:
        """Updates the figures, then publishes updates: a client with a complete answer finds its blocks free."""
        self._count()
        self._publish(updates)

    def _count(self) -> None:
        batch = self._batch
        self.figures = Figures(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks=batch.num_blocks,
            blocks_used=batch.num_blocks_used,
            preemptions=batch.preemptions,
            shared_tokens=batch.shared_tokens,
            steps=self._steps,
            failures=self._failures,
            loras=batch.loras.figures(),
            draft=replace(batch.drafts.stats) if batch.drafts else DraftStats(),
        )


def _update(event: Event) -> Update:
    return Update(event.token, event.reason, score=event.score, prompt=event.prompt_scores)


def _broken(error: BaseException) -> BringupError:
    message = f"the last {MOST_FAILURES} steps failed, and the server ends: {_words(error)}"
    return fail("BU630", message, help="run the bundle without the server: `bringup verify`")


def _words(error: Any) -> str:
    found = error.findings[0].message if isinstance(error, BringupError) else str(error)
    return f"{type(error).__name__}: {found}".partition("\n")[0]
