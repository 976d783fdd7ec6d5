"""More connections than the server holds: the first ones are served, and no file descriptor is missing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bringup.compile.serve import connections, protocol
from bringup.compile.serve.limits import Limits
from tests import PATIENCE
from tests.serve.conftest import KEY, Process
from tests.serve.test_protocol import PLAIN, Connection, Wire, answer_of, listening, run

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def opened(wire: Wire, count: int) -> AsyncIterator[list[Connection]]:
    held = [await wire.open() for _ in range(count)]
    try:
        yield held
    finally:
        for _, writer in held:
            writer.transport.abort()


async def answered(connection: Connection, request: bytes) -> bytes:
    """The head and the body of the answer; empty if the connection was closed."""
    connection[1].write(request)
    return await answer_of(connection)


async def accepted(wire: Wire, request: bytes) -> bytes:
    """The answer of a server with room for a connection: it may notice late that clients have left."""
    while not (answer := await wire.send(request)) or answer[9:12] == b"503":
        await asyncio.sleep(0.05)
    return answer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection beyond the limit is not closed before its request arrives, however slow this process is."""
    monkeypatch.setattr(protocol, "MOMENT", PATIENCE)


@pytest.mark.usefixtures("patient")
def test_the_first_of_many_connections_are_served():
    """All are open before the first request arrives."""

    async def scenario() -> None:
        async with listening(limits=Limits(connections=3, head=PATIENCE)) as wire:
            async with opened(wire, 10) as held:
                answers = await asyncio.gather(*(answered(each, PLAIN) for each in held))
                assert [answer[9:12] for answer in answers] == [b"200"] * 3 + [b"503"] * 7
                for answer in answers[3:]:
                    head, _, body = answer.partition(b"\r\n\r\n")
                    assert b"retry-after: 1\r\n" in head + b"\r\n"
                    assert json.loads(body)["error"]["code"] == "too_many_connections"
                assert await held[3][0].read() == b"", "a rejected connection is closed"
                async with opened(wire, 1) as late:
                    assert (await answered(late[0], HEALTH))[9:12] == b"200", "the server is alive"
                    assert await late[0][0].read() == b"", "it is closed, for other probes"
                count = 'bringup_requests_total{endpoint="/v1/completions",status="503"}'
                assert (await wire.server.figures())[count] == 7
            assert (await accepted(wire, PLAIN)).startswith(b"HTTP/1.1 200 ")

    run(scenario)


def test_an_idle_connection_beyond_the_limit_is_closed_soon(monkeypatch):
    monkeypatch.setattr(protocol, "MOMENT", 0.2)

    async def scenario() -> None:
        async with listening(limits=Limits(connections=3, head=2 * PATIENCE)) as wire, opened(wire, 4) as held:
            assert await held[3][0].read() == b""
            answers = [(await answered(each, PLAIN))[9:12] for each in held[:3]]
            assert answers == [b"200"] * 3

    run(scenario)


@pytest.mark.usefixtures("patient")
def test_connections_beyond_those_are_closed(monkeypatch):
    monkeypatch.setattr(connections, "EXTRA", 2)

    async def scenario() -> None:
        async with listening(limits=Limits(connections=3, head=PATIENCE)) as wire, opened(wire, 8) as held:
            answers = [(await answered(each, HEALTH))[9:12] for each in held]
            assert answers == [b"200"] * 5 + [b""] * 3

    run(scenario)


@pytest.mark.parametrize(
    ("soft", "hard", "room"),
    [
        (4096, 4096, (512, 128, 24)),
        (256, 4096, (512, 128, 24)),  # the soft limit is raised
        (100, 100, (44, 10, 2)),
        (40, 40, "BU917: this process may open 40 files, and a server needs"),
    ],
)
def test_room_within_the_limit_of_open_files(soft: int, hard: int, room: Any):
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    code += "from bringup.compile.serve.connections import room_for; from bringup.diagnostics import BringupError\n"
    code += "try: print([*room_for(512)], resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    code += "except BringupError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if isinstance(room, str):
        assert done.stdout.startswith(room)
    else:
        found, _, limit = done.stdout.strip().rpartition(" ")
        served, rejected, burst = json.loads(found)
        assert (served, rejected, burst) == pytest.approx(room, abs=6), "a few descriptors are open already"
        assert served + rejected + 5 * burst + connections.RESERVED < int(limit)


@pytest.mark.slow
def test_a_process_that_may_open_few_files(base, bundle, tmp_path):
    """As many connections as the system queues do not take the descriptors that requests need, nor fill the log."""
    process = Process(bundle, {}, tmp_path / "hold", descriptors=160)

    async def scenario() -> None:
        wire = Wire(None, process.port)  # type: ignore[arg-type]
        request = PLAIN.replace(b"exact", b"tiny").replace(b"Host: x", b"Host: localhost\r\nAuthorization: Bearer %s")
        body = b'{"model": "tiny", "prompt": [3], "max_tokens": 4}'
        head = request.partition(b"Content-Length")[0] % KEY.encode()
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        found: list[bytes] = []
        for _ in range(2):
            async with opened(wire, 300) as held:
                found += [answer[9:12] for answer in await asyncio.gather(*(answered(each, request) for each in held))]
        assert set(found) <= {b"200", b"503", b"429", b""}
        assert found.count(b"200") > 20
        assert (await accepted(wire, request)).startswith(b"HTTP/1.1 200 ")

    run(scenario)
    process.running.terminate()
    assert process.end() == 0
    assert "Traceback" not in process.log
