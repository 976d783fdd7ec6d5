"""The server: binds an address, loads the bundle, serves, drains on a signal, and ends."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike

import uvicorn
from starlette.types import ASGIApp

from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.serve.app import application
from bringup.compile.serve.connections import room_for
from bringup.compile.serve.generation import Service
from bringup.compile.serve.hosts import names_of
from bringup.compile.serve.intake import Intake
from bringup.compile.serve.limits import Limits
from bringup.compile.serve.metrics import Metrics
from bringup.compile.serve.models import Models
from bringup.compile.serve.protocol import protocol_of
from bringup.compile.serve.worker import Worker
from bringup.compile.text.tokenizer import Tokenizer
from bringup.diagnostics import BringupError, fail
from bringup.system.os_errors import reason
from bringup.system.signals import Stopped

QUEUE = 2048  # connections that the system holds until they are accepted
MOMENT, MOMENTS = 0.1, 10  # seconds, and how many of them clients get for the last responses
SIGNALS = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))


def open_served(
    bundle: str | PathLike[str], executor: str | None, loras: Mapping[str, str], lora_fraction: float | None,
    draft: str | PathLike[str] | None = None, draft_tokens: int | None = None,
) -> Batch:  # fmt: skip
    """Opens a bundle with LoRAs by name, and with a draft. LoRAs are never evicted from the host's cache;
    `lora_fraction` limits their slots. Raises as `load_batch`, `read_lora` and `Loras.add` do.
    """
    batch = load_batch(
        bundle, executor, lora_bytes=sys.maxsize, lora_fraction=lora_fraction, draft=draft, draft_tokens=draft_tokens
    )
    for name, path in loras.items():
        batch.loras.hold(name, batch.read_lora(path))
    return batch


def tokenizer_of(batch: Batch) -> Tokenizer:
    """The bundle's tokenizer. Raises BU014 for a bundle without one, as `Batch.tokenizer` does."""
    try:
        return batch.tokenizer()
    except BringupError as error:
        if error.findings[0].code != "BU014":
            raise
        raise fail("BU014", error.findings[0].message, help="compile with --tokenizer PATH") from None


def check_key(api_key: str | None) -> None:
    """Raises BU048 for a key that no client can send in a header."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        help = "omit --api-key and BRINGUP_API_KEY to serve without a key"
        raise fail("BU048", "the API key is empty, or has characters that an HTTP header cannot have", help=help)


def bound(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket bound to an address, not yet listening. Raises BU917 if that fails."""
    with _address(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # closes connections whose client does not read
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.unread * 1000))
            opened.bind(address)
        except OSError:
            opened.close()
            raise
        return opened


@contextmanager
def _address(host: str, port: int) -> Generator[None]:
    try:
        yield
    except OSError as error:
        help = "choose another --host or --port; --port 0 selects a free one"
        raise fail("BU917", f"cannot serve at {host}:{port}: {reason(error)}", help=help) from None


def serve(
    opening: Callable[[], Batch],
    *,
    model: str,
    loras: Mapping[str, str],
    host: str,
    port: int,
    api_key: str | None,
    limits: Limits,
    ready: Callable[[str, Models], None],
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serves until a signal; `ready(url, models)` is called when requests are accepted.

    After the first signal, accepted requests run to their end and others are rejected; a second signal ends the server
    at once and raises Stopped. Raises BU047, BU048 and BU917 before anything is loaded; BU014, and the errors of
    `opening`; BU630 if the program fails repeatedly; BU631 if a step does not end: the process then exits without it.
    `allowed_hosts` are additional host names of a server that only this machine can reach.
    """
    models = Models(model, list(loras))
    check_key(api_key)
    names = names_of(host, allowed_hosts)
    with bound(host, port, limits) as listening:
        room_for(limits.connections)
        asyncio.run(_Life(opening, models, listening, api_key, names, limits, ready).run())


class Server(uvicorn.Server):
    """uvicorn's server with limits, and without its own signal handlers. Raises BU917 as `room_for` does."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        room = room_for(limits.connections)
        config = uvicorn.Config(
            app, http=protocol_of(limits.head, room), ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, h11_max_incomplete_event_size=limits.head_bytes,
            backlog=room.burst, timeout_keep_alive=int(limits.idle), timeout_graceful_shutdown=int(limits.unread),
        )  # fmt: skip
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUE)  # asyncio has one number for this and for the connections that it accepts at a time

    async def stop_now(self) -> None:
        """Ends without waiting for clients: the connections are closed when the last responses are written, or after
        some moments. While the process is stopped, only one of them passes.
        """
        for _ in range(MOMENTS):
            if tasks := list(self.server_state.tasks):
                await asyncio.wait(tasks, timeout=MOMENT)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = self.should_exit = True


class _Life:
    def __init__(
        self, opening: Callable[[], Batch], models: Models, listening: socket.socket, api_key: str | None,
        names: frozenset[str] | None, limits: Limits, ready: Callable[[str, Models], None],
    ) -> None:  # fmt: skip
        self._opening, self._models, self._listening = opening, models, listening
        self._api_key, self._names, self._limits, self._ready = api_key, names, limits, ready
        self._stopped: list[int] = []

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._intake = Intake()
        worker = self._intake.worker = Worker(self._opening, self._intake.publish)
        try:
            batch = worker.start()
            self._intake.limit = batch.interface.max_batch_size + self._limits.queue
            self._server = self._configured(batch, worker)
            worker.ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._lost))
            with self._signals():
                self._listen()
                watch = self._loop.create_task(self._watch(worker))
                await self._server.serve([self._listening])
                watch.cancel()
        finally:
            worker.stop()
        worker.ended.result()
        if len(self._stopped) > 1:
            raise Stopped(self._stopped[-1])

    def _configured(self, batch: Batch, worker: Worker) -> Server:
        service = Service(
            batch=batch, tokenizer=tokenizer_of(batch), models=self._models, intake=self._intake,
            metrics=Metrics(lambda: worker.figures), limits=self._limits,
            rendering=asyncio.Semaphore(self._limits.templates),
        )  # fmt: skip
        return Server(application(service, self._api_key, self._names), self._limits)

    def _listen(self) -> None:
        host, port = self._listening.getsockname()[:2]
        with _address(host, port):
            self._listening.listen()
        shown = f"[{host}]" if ":" in host else host
        self._ready(f"http://{shown}:{port}", self._models)

    @contextmanager
    def _signals(self) -> Generator[None]:
        """Signals in this block drain the server; those that the parent process ignored stay ignored."""
        before = {each: signal.getsignal(each) for each in SIGNALS}
        taken = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
        for each in taken:
            self._loop.add_signal_handler(each, self._stop, each)
        try:
            yield
        finally:
            for each in taken:
                self._loop.remove_signal_handler(each)
                signal.signal(each, before[each])

    def _stop(self, signum: int) -> None:
        self._stopped.append(signum)
        if len(self._stopped) == 1:
            self._draining = self._loop.create_task(self._drain())
        elif len(self._stopped) == 2:
            self._intake.cancel()
            self._stopping = self._loop.create_task(self._server.stop_now())

    async def _drain(self) -> None:
        await self._intake.drain()
        self._server.should_exit = True

    async def _watch(self, worker: Worker) -> None:
        """Abandons the worker if a step takes too long: a thread cannot be ended."""
        limit = self._limits.step
        while worker.step_seconds <= limit:
            await asyncio.sleep(min(limit / 4, 1.0))
        message = f"a step of the program has taken over {limit:g} s, and the server ends"
        error = fail("BU631", message, help="`--step-seconds N` allows longer steps")
        atexit.register(_end)
        worker.abandon(error)
        self._intake.fail(error)

    def _lost(self) -> None:
        """The worker has ended, so the server ends."""
        self._intake.fail()
        self._server.should_exit = True


def _end() -> None:
    """Exits without waiting for the threads of a step."""
    sys.stdout.flush()
    os._exit(1)
