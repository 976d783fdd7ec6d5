"""A step that does not end, draining and cancelling: what is answered, and what /health says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from bringup.compile.text.tokenizer import Tokenizer
from bringup.diagnostics import fail
from tests import PATIENCE
from tests.runtime import exact
from tests.serve.inside import Server, serving, wanted
from tests.serve.test_intake import BODY, Client, Gate, stepping


async def states(server: Server) -> list[tuple[int, str]]:
    found = [await server.client.get(path) for path in ("/health", "/health/live")]
    return [(each.status_code, each.json()["status"]) for each in found]


def test_a_step_that_does_not_end_fails_all_requests():
    """The thread is left to itself: requests are answered at once, and later ones are refused."""

    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch) as server:
            tasks = [asyncio.create_task(server.complete([n], max_tokens=3)) for n in range(4)]
            await stepping(gate)
            while len(server.intake) < 4:
                await asyncio.sleep(0.001)
            assert server.worker.step_seconds > 0
            error = fail("BU631", "a step hangs")
            server.worker.abandon(error)
            server.intake.fail(error)
            answers = await asyncio.gather(*tasks)
            assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [(500, "BU631")] * 4
            assert (await server.complete([1])).status_code == 503
            assert await states(server) == [(503, "failed")] * 2
            assert server.worker.ended.exception() is error
            gate.free.set()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_server_that_drains_is_alive_and_not_ready():
    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch) as server:
            assert await states(server) == [(200, "ok")] * 2
            task = asyncio.create_task(server.complete([3], max_tokens=3))
            await stepping(gate)
            draining = asyncio.create_task(server.intake.drain())
            await asyncio.sleep(0)
            assert await states(server) == [(503, "draining"), (200, "ok")]
            gate.free.set()
            await draining
            assert (await task).json()["choices"][0]["text"] == wanted([3], 3)
            assert server.worker.step_seconds == 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_cancelling_ends_what_was_accepted():
    """Requests that run and that wait: those without a response get 503, a stream gets a last event."""

    async def scenario() -> None:
        batch = exact.new_batch(2)
        steps = threading.Semaphore(2)  # the first tokens of the stream
        batch.executor.fault = lambda: steps.acquire(timeout=PATIENCE)
        async with serving(batch) as server:
            stream = Client(server, BODY % b"true")
            await stream.first.wait()
            tasks = [asyncio.create_task(server.complete([n + 1], max_tokens=200)) for n in range(4)]
            while len(server.intake) < 5:
                await asyncio.sleep(0.001)
            server.intake.cancel()
            answers = await asyncio.gather(*tasks)
            assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [(503, "unavailable")] * 4
            await stream.task
            last = [each["body"] for each in stream.sent if each.get("body")][-1]
            assert b"has cancelled the request" in last
            assert (await server.complete([1])).json()["error"]["code"] == "draining"
            steps.release(9)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_request_that_is_prepared_while_the_others_are_cancelled(monkeypatch):
    """It ends as they do, although it reaches the program afterwards."""
    begun, free = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def slow(*given: Any, **options: Any) -> Any:
        begun.set()
        assert free.wait(PATIENCE)
        return encode(*given, **options)

    async def scenario() -> None:
        async with serving(exact.new_batch(2)) as server:
            task = asyncio.create_task(server.complete("w1", max_tokens=3))
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            server.intake.cancel()
            free.set()
            answer = await task
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")

    monkeypatch.setattr(Tokenizer, "encode", slow)
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
