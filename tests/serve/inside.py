"""A server in the process of the test: its application, on the batch of `tests/runtime/exact.py`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.request import Request
from bringup.compile.serve.app import application
from bringup.compile.serve.generation import Service
from bringup.compile.serve.intake import Intake
from bringup.compile.serve.limits import Limits
from bringup.compile.serve.metrics import Metrics
from bringup.compile.serve.models import Models
from bringup.compile.serve.worker import Worker
from bringup.compile.text.chat import Chat
from bringup.compile.text.tokenizer import Tokenizer
from tests import PATIENCE
from tests.runtime import exact

EOS = 7
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{{ start or 'w1' }}"


def words() -> Tokenizer:
    """`w0` to `w29`; other words are w0, roles of a conversation among them."""
    backend = tokenizers.Tokenizer(WordLevel({f"w{n}": n for n in range(exact.VOCABULARY)}, unk_token="w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, frozenset({EOS}), Chat(TEMPLATE))


def text_of(tokens: Sequence[int]) -> str:
    """What an answer of these tokens says."""
    return " ".join(f"w{token}" for token in tokens if token != EOS)


def wanted(prompt: Sequence[int], count: int, **settings: Any) -> str:
    """The text of an answer, by the definition of the program's logits."""
    return text_of(exact.expected(Request(prompt, max_new_tokens=count, eos={EOS}, **settings)))


class Server:
    """`client` sends requests to the application; `service`, `intake` and `worker` are what is behind it."""

    def __init__(self, service: Service, worker: Worker, api_key: str | None) -> None:
        self.service, self.intake, self.worker = service, service.intake, worker
        self.app = application(service, api_key)
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE)

    async def complete(self, prompt: Any, **fields: Any) -> httpx2.Response:
        body = {"model": "exact", "prompt": prompt, "temperature": 0, **fields}
        return await self.client.post("/v1/completions", json=body)

    async def figures(self) -> dict[str, float]:
        """The samples of /metrics."""
        text = (await self.client.get("/metrics")).text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def idle(self) -> None:
        """Returns once nothing is left of any request."""
        async with asyncio.timeout(PATIENCE):
            while len(self.intake) or self.worker.figures.running or self.worker.figures.waiting:
                await asyncio.sleep(0.005)
        assert self.worker.figures.blocks_used == 0


@asynccontextmanager
async def serving(
    batch: Batch | None = None, *, limits: Limits | None = None, api_key: str | None = None, chat: bool = True
) -> AsyncIterator[Server]:
    """The server in a block; at its end nothing is left of any request."""
    limits, intake, opened = limits or Limits(), Intake(), exact.new_batch() if batch is None else batch
    tokenizer = words()
    worker = intake.worker = Worker(lambda: opened, intake.publish)
    try:
        worker.start()
        intake.limit = opened.interface.max_batch_size + limits.queue
        service = Service(
            batch=opened, tokenizer=tokenizer if chat else Tokenizer(tokenizer.backend, tokenizer.eos),
            models=Models("exact", []), intake=intake, metrics=Metrics(lambda: worker.figures), limits=limits,
            rendering=asyncio.Semaphore(limits.templates),
        )  # fmt: skip
        server = Server(service, worker, api_key)
        async with server.client:
            yield server
            await server.idle()
    finally:
        worker.stop()


def events_of(text: str) -> Iterator[Any]:
    """The objects of a stream, and its last line as it is."""
    for line in text.split("\n\n"):
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
