"""Connections: what is no HTTP, heads that never end, bodies in chunks, clients that vanish."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bringup.compile.serve.limits import Limits
from bringup.compile.serve.server import Server as Listening
from bringup.compile.serve.server import bound
from tests import PATIENCE
from tests.runtime import exact
from tests.serve.inside import Server, serving, wanted
from tests.serve.test_intake import Gate, stepping

BODY = json.dumps({"model": "exact", "prompt": [3], "max_tokens": 4, "temperature": 0}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PLAIN = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
PAUSE, HEAD = 0.05, 0.5  # seconds: between two parts of a head or a body, and the limit for a head


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer_of(connection: Connection) -> bytes:
    """The head and the body of the next answer; empty if the connection was closed."""
    reader, _ = connection
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return head + await reader.readexactly(int(length.partition(b":")[2]))
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


class Wire:
    """Connections to a server at a port."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port

    async def open(self) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, sent: bytes, count: int = 1) -> bytes:
        """The first `count` answers."""
        connection = await self.open()
        try:
            connection[1].write(sent)
            return b"".join([await answer_of(connection) for _ in range(count)])
        finally:
            connection[1].transport.abort()


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[Wire]:
    limits = settings.setdefault("limits", Limits())
    async with serving(**settings) as server:
        with bound("127.0.0.1", 0, limits) as address:
            http = Listening(server.app, limits)
            running = asyncio.create_task(http.serve([address]))
            while not http.started:
                await asyncio.sleep(0.005)
            try:
                yield Wire(server, address.getsockname()[1])
                await server.idle()
            finally:
                http.should_exit = True
                http.config.timeout_graceful_shutdown = 0
                await running


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


async def pauses(connection: Connection, part: bytes) -> int:
    """How often `part` is sent until the server closes the connection.

    The server's limit and the pauses are timers of one event loop: on a slow machine there are fewer, never more.
    """
    reader, writer = connection
    ended, count = asyncio.create_task(reader.read()), 0
    while not ended.done():
        writer.write(part)
        await asyncio.sleep(PAUSE)
        count += 1
    await asyncio.gather(ended, return_exceptions=True)
    writer.transport.abort()
    return count


def test_what_is_no_http():
    many = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(4000)) + b"\r\n"
    cases = {
        b"\x16\x03\x01\x02\x00\x01\x00" * 10: 400,  # TLS
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n": 431,
        many: 431,
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n": 431,
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd": 400,
        POST + b"Content-Length: -1\r\n\r\n": 400,
        POST + b"Transfer-Encoding: gzip\r\n\r\n": 400,
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n": 400,
        b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n": 400,
        b"GET /health HTTP/1.1\r\n\r\n": 400,  # HTTP/1.1 wants a host
        b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n": 404,
        b"GET /health\x00 HTTP/1.1\r\nHost: x\r\n\r\n": 400,
    }  # fmt: skip

    async def scenario() -> None:
        async with listening() as wire:
            for request, status in cases.items():
                answer = await wire.send(request)
                assert answer.startswith(b"HTTP/1.1 %d " % status), (request[:80], answer[:200])
                assert b'{"error": {"message": ' in answer
            answer = await wire.send(many[:20_000])
            assert answer.startswith(b"HTTP/1.1 400 "), "the end of a head that is too long is not waited for"

    run(scenario)


def test_bodies_in_chunks_and_several_requests_of_one_connection():
    async def scenario() -> None:
        async with listening() as wire:
            answer = await wire.send(CHUNKED + PLAIN + CHUNKED, count=3)
            assert answer.count(b"HTTP/1.1 200 OK") == 3
            assert answer.count(json.dumps(wanted([3], 4)).encode()) == 3

    run(scenario)


@pytest.mark.parametrize(
    "length", [b"Content-Length: 5000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4C4B40\r\n"]
)
def test_a_client_that_is_still_sending_gets_its_answer(length):
    """And then another one: the rest of a body that is too long is read, and dropped."""

    async def scenario() -> None:
        async with listening(limits=Limits(body=1000, head=2)) as wire:
            reader, writer = await wire.open()
            writer.write(POST + length + b" " * 2_000_000)
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 413 ")
            writer.write(b" " * 3_000_000 + (b"\r\n0\r\n\r\n" if b"chunked" in length else b"") + PLAIN)
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200 ")
            start = time.monotonic()
            writer.write(POST + length + b" " * 2000)
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 413 ")
            assert await pauses((reader, writer), b" ") < 2 * 2 / PAUSE, "one that never ends is given up"
            assert time.monotonic() - start >= 2

    run(scenario)


def test_a_head_that_never_ends_is_given_up():
    """Also the second one of a connection; one that only opens a connection; not a request that takes long."""

    async def scenario() -> None:
        batch = exact.new_batch()
        gate = Gate(batch)
        async with listening(batch=batch, limits=Limits(head=HEAD)) as wire:
            slow = asyncio.create_task(wire.send(PLAIN))
            await stepping(gate)
            line, whole = b"GET /health HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            for first, more in ((b"", b""), (line, b"X: y\r\n"), (whole + line, b"X: y\r\n")):
                start = time.monotonic()
                connection = await wire.open()
                connection[1].write(first)
                assert await pauses(connection, more) < 3 * HEAD / PAUSE
                assert time.monotonic() - start >= HEAD
            gate.free.set()
            assert (await slow).startswith(b"HTTP/1.1 200 OK")

    run(scenario)


@pytest.mark.parametrize(("stream", "half"), [(False, False), (True, False), (False, True)])
def test_a_client_that_vanishes_ends_its_request(stream, half):
    """While its request runs, while it waits, and in the middle of its body. `half`: only its sending side ends."""
    body = json.dumps({"model": "exact", "prompt": [3], "max_tokens": 200, "stream": stream}).encode()
    request = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def scenario() -> None:
        batch = exact.new_batch(1)
        gate = Gate(batch)
        async with listening(batch=batch) as wire:
            connections = [await wire.open() for _ in range(3)]
            for number, (_, writer) in enumerate(connections):
                writer.write(request[: len(request) - 5 * (number == 2)])
            await stepping(gate)
            while len(wire.server.intake) < 2:
                await asyncio.sleep(0.005)
            for _, writer in connections:
                if half:
                    writer.write_eof()
                else:
                    writer.transport.abort()
            while (await wire.server.figures())["bringup_disconnects_total"] < 3:
                await asyncio.sleep(0.005)
            for _, writer in connections:
                writer.transport.abort()
            gate.free.set()
            await wire.server.idle()
            assert wire.server.worker.figures.steps < 20

    run(scenario)
