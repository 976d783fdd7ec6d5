"""Which requests run, and what becomes of those that fail, that nobody waits for, and that are under way at the end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from io import StringIO
from itertools import count
from typing import Any

import numpy as np
import pytest

from bringup.compile.runtime.batch import Batch
from bringup.compile.serve.limits import Limits
from bringup.compile.serve.worker import MOST_FAILURES, Ticket, Update, Worker
from bringup.diagnostics import BringupError
from tests import PATIENCE
from tests.runtime import exact
from tests.serve.inside import Server, serving, wanted

BODY = b'{"model": "exact", "prompt": [3, 1, 4], "max_tokens": 200, "temperature": 0, "stream": %s}'


class Gate:
    """Steps of a batch wait for leave."""

    def __init__(self, batch: Batch) -> None:
        self.free = threading.Event()
        self.steps = threading.Semaphore(0)
        batch.executor.fault = self.wait  # type: ignore[attr-defined]

    def wait(self) -> None:
        self.steps.release()
        assert self.free.wait(PATIENCE)


async def stepping(gate: Gate) -> None:
    """Returns once a step is under way."""
    assert await asyncio.to_thread(gate.steps.acquire, timeout=PATIENCE)


class Client:
    """Sends a body to the application, and leaves when the test says so."""

    def __init__(self, server: Server, body: bytes, path: str = "/v1/completions") -> None:
        self.leaving, self.sent = asyncio.Event(), list[dict[str, Any]]()
        self.first = asyncio.Event()
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
            "server": ("test", 80), "client": ("test", 1), "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        self._body: list[bytes] = [body]
        self.task = asyncio.create_task(server.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.first.set()


def run(scenario: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(*arguments), PATIENCE))


def test_a_full_queue_is_429():
    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch, limits=Limits(queue=3)) as server:
            tasks = [asyncio.create_task(server.complete([n + 1], max_tokens=3)) for n in range(5)]
            await stepping(gate)
            while len(server.intake) < 5:
                await asyncio.sleep(0.001)
            refused = await server.complete([9], max_tokens=3)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.json()["error"]["code"] == "queue_full"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            gate.free.set()
            answers = await asyncio.gather(*tasks)
            assert [each.json()["choices"][0]["text"] for each in answers] == [wanted([n + 1], 3) for n in range(5)]
            assert (await server.complete([9], max_tokens=3)).status_code == 200
            many = await server.complete([1], n=6, max_tokens=1)
            assert (many.status_code, many.json()["error"]["param"]) == (400, "n"), "it would never fit"

    run(scenario)


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_a_client_that_leaves_frees_its_blocks(stream):
    """While its request runs, and while it waits; the other requests are answered."""

    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch) as server:
            clients = [Client(server, BODY % stream) for _ in range(4)]
            await stepping(gate)
            while len(server.intake) < 4:
                await asyncio.sleep(0.001)
            for client in (clients[0], clients[3]):
                client.leaving.set()
                await client.task
            gate.free.set()
            await asyncio.gather(clients[1].task, clients[2].task)
            await server.idle()
            figures = await server.figures()
            assert figures["bringup_disconnects_total"] == 2
            assert figures["bringup_cache_blocks_in_use"] == 0
            assert all(client.sent[0]["status"] == 200 for client in clients[1:3])
            assert not clients[3].sent
            assert server.worker.figures.steps < 450, "the two that left were not computed to their end"

    run(scenario)


def test_a_client_that_leaves_in_the_middle_of_a_stream():
    async def scenario() -> None:
        async with serving() as server:
            client = Client(server, BODY % b"true")
            await client.first.wait()
            client.leaving.set()
            await client.task
            await server.idle()

    run(scenario)


def test_a_step_that_fails_fails_its_requests_and_no_others():
    """Those that wait are answered as if nothing had happened; so are those that come later."""

    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch) as server:
            tasks = [asyncio.create_task(server.complete([n + 1], max_tokens=3)) for n in range(4)]
            await stepping(gate)
            while len(server.intake) < 4:
                await asyncio.sleep(0.001)

            def fault() -> None:
                batch.executor.fault = lambda: None
                raise RuntimeError("secret of the device")

            batch.executor.fault = fault
            gate.free.set()
            answers = await asyncio.gather(*tasks)
            assert sorted(each.status_code for each in answers) == [200, 200, 500, 500]
            for number, answer in enumerate(answers):
                if answer.status_code == 200:
                    assert answer.json()["choices"][0]["text"] == wanted([number + 1], 3)
                else:
                    assert answer.json()["error"]["type"] == "server_error"
                    assert "secret" not in answer.text
            assert (await server.complete([5], max_tokens=3)).json()["choices"][0]["text"] == wanted([5], 3)
            assert (await server.figures())["bringup_failed_steps_total"] == 1

    run(scenario)


def test_logits_that_are_no_numbers_fail_one_request(monkeypatch):
    def poisoned(rows: Any) -> np.ndarray:
        logits = original(rows)
        return np.full_like(logits, np.nan) if [token for token, _ in rows][:1] == [13] else logits

    original = exact.logits_of

    async def scenario() -> None:
        async with serving() as server:
            monkeypatch.setattr(exact, "logits_of", poisoned)
            bad, good = await asyncio.gather(server.complete([13, 2], max_tokens=9), server.complete([5], max_tokens=9))
            assert (bad.status_code, bad.json()["error"]["code"]) == (500, "BU607")
            monkeypatch.setattr(exact, "logits_of", original)
            assert good.json()["choices"][0]["text"] == wanted([5], 9)

    run(scenario)


def test_a_step_that_fails_in_the_middle_of_a_stream():
    async def scenario() -> None:
        batch = exact.new_batch()
        steps = count()

        def fault() -> None:
            if next(steps) == 3:
                raise MemoryError

        batch.executor.fault = fault
        async with serving(batch) as server:
            client = Client(server, BODY % b"true")
            await client.task
            assert client.first.is_set()
            text = b"".join(message.get("body", b"") for message in client.sent).decode()
            *_, last = text.strip().split("\n\n")
            assert '"type": "server_error"' in last
            assert "[DONE]" not in text
            assert client.sent[-1].get("more_body", False) is False

    run(scenario)


def test_a_program_that_always_fails_ends_the_worker():
    """Each request is answered, and later ones are refused: nothing waits for a thread that is gone."""

    async def scenario() -> None:
        batch = exact.new_batch()
        batch.executor.fault = lambda: 1 / 0  # type: ignore[attr-defined]
        async with serving(batch) as server:
            server.worker.ended.add_done_callback(lambda _: server.intake.fail())
            answers = [await server.complete([1], max_tokens=1) for _ in range(MOST_FAILURES)]
            while not server.intake.lost:
                await asyncio.sleep(0.005)
            answers.append(await server.complete([1], max_tokens=1))
            assert [each.status_code for each in answers] == [500] * MOST_FAILURES + [503]
            assert (await server.client.get("/health")).json() == {"status": "failed"}
            with pytest.raises(BringupError, match=r"BU630.*division by zero"):
                server.worker.ended.result(PATIENCE)

    run(scenario)


def test_a_mistake_in_the_server_itself_ends_it_and_answers_everybody():
    async def scenario() -> None:
        batch = exact.new_batch(1)
        batch.executor.fault = lambda: "x" + 1  # type: ignore[attr-defined,operator]
        async with serving(batch) as server:
            answers = await asyncio.gather(*(server.complete([n + 1], max_tokens=2) for n in range(5)))
            assert [each.status_code for each in answers] == [500] * 5
            with pytest.raises(TypeError):
                server.worker.ended.result(PATIENCE)
            assert (await server.complete([1], max_tokens=1)).status_code == 500, "also what comes too late"

    run(scenario)


def test_a_request_that_cannot_be_added_is_in_the_log(monkeypatch):
    written = StringIO()
    handler, log = logging.StreamHandler(written), logging.getLogger("bringup.serve")

    async def scenario() -> None:
        batch = exact.new_batch(1)
        add = batch.add
        async with serving(batch) as server:
            monkeypatch.setattr(batch, "add", lambda request: 1 / 0)
            answer = await server.complete([1], max_tokens=2)
            assert answer.status_code == 500
            assert "which is in the server's log" in answer.json()["error"]["message"]
            monkeypatch.setattr(batch, "add", add)
            assert (await server.complete([1], max_tokens=2)).status_code == 200

    log.addHandler(handler)
    try:
        run(scenario)
    finally:
        log.removeHandler(handler)
    assert "ZeroDivisionError" in written.getvalue()


def test_draining_finishes_what_was_accepted():
    async def scenario() -> None:
        batch = exact.new_batch(2)
        gate = Gate(batch)
        async with serving(batch) as server:
            tasks = [asyncio.create_task(server.complete([n + 1], max_tokens=5)) for n in range(6)]
            await stepping(gate)
            while len(server.intake) < 6:
                await asyncio.sleep(0.001)
            drained = asyncio.create_task(server.intake.drain())
            await asyncio.sleep(0)
            refused = await server.complete([9], max_tokens=1)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert (await server.client.get("/health")).status_code == 503
            assert not drained.done()
            gate.free.set()
            answers = await asyncio.gather(*tasks)
            assert [each.json()["choices"][0]["text"] for each in answers] == [wanted([n + 1], 5) for n in range(6)]
            await drained

    run(scenario)


def test_the_event_loop_runs_while_a_step_does():
    async def scenario() -> None:
        batch = exact.new_batch()
        gate = Gate(batch)
        async with serving(batch) as server:
            task = asyncio.create_task(server.complete([1], max_tokens=2))
            await stepping(gate)
            assert (await server.client.get("/health")).status_code == 200
            assert (await server.figures())["bringup_running_requests"] == 0, "figures are those of the latest step"
            gate.free.set()
            assert (await task).status_code == 200

    run(scenario)


def test_a_batch_that_cannot_be_opened():
    def opening() -> Batch:
        raise ValueError("no bundle")

    worker = Worker(opening, lambda updates: None)
    with pytest.raises(ValueError, match="no bundle"):
        worker.start()
    worker.stop()


def test_every_ticket_gets_one_last_update():
    """Also one that is cancelled twice, one that comes after the end, and those that wait at the end."""
    updates: list[tuple[Ticket, Update]] = []
    worker = Worker(lambda: exact.new_batch(1), updates.extend)
    worker.start()
    tickets = [Ticket(exact.Request([1], max_new_tokens=200), lambda update: None) for _ in range(4)]
    for ticket in tickets[:3]:
        worker.add(ticket)
    worker.cancel(tickets[1])
    worker.cancel(tickets[1])
    worker.stop()
    worker.add(tickets[3])
    last = [ticket for ticket, update in updates if update.is_last]
    assert sorted(map(id, last)) == sorted(map(id, tickets))
