"""The two endpoints that generate: from a body to prompts, and from tokens to an answer, complete or streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.request import Request
from bringup.compile.serve.answer import Answer, Piece, echo_of
from bringup.compile.serve.body import Disconnected, read_object, while_connected
from bringup.compile.serve.error_response import CONTEXT, Refused, of_request
from bringup.compile.serve.intake import Intake, Sequences
from bringup.compile.serve.limits import Limits
from bringup.compile.serve.metrics import Metrics
from bringup.compile.serve.models import Models
from bringup.compile.serve.parameters import (
    ChatCompletion,
    Completion,
    Parameters,
    chat_completion,
    completion,
    tokens_left,
)
from bringup.compile.serve.shapes import ChatShape, CompletionShape, Shape, usage_of
from bringup.compile.text.token_bytes import TokenBytes
from bringup.compile.text.tokenizer import Tokenizer
from bringup.diagnostics import BringupError

SEEDS = 1 << 64  # a negative seed is the unsigned integer of the same bits
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(slots=True, kw_only=True)
class Service:
    """The parts that both endpoints use. Of the batch, only methods that any thread may call."""

    batch: Batch
    tokenizer: Tokenizer
    models: Models
    intake: Intake
    metrics: Metrics
    limits: Limits
    rendering: asyncio.Semaphore  # limits the chat templates that are rendered at a time
    bytes_of: TokenBytes = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_of = TokenBytes(self.tokenizer)


class Generation:
    """An endpoint, as an ASGI application. `read` parses the body, `shape` is the format of the answers."""

    def __init__(
        self,
        service: Service,
        read: Callable[[Mapping[str, Any], Limits], Completion | ChatCompletion],
        shape: type[Shape],
    ) -> None:
        self._service, self._read, self._shape = service, read, shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Refused if no response has begun."""
        service = self._service
        try:
            service.intake.check()
            body = await read_object(scope, receive, service.limits)
            given = self._read(body, service.limits)
            await while_connected(receive, self._answer(given, scope, receive, send))
        except Disconnected:
            service.metrics.disconnects.inc()

    async def _answer(self, given: Completion | ChatCompletion, scope: Scope, receive: Receive, send: Send) -> None:
        service, parameters, start = self._service, given.parameters, time.perf_counter()
        lora = service.models.lora(parameters.model)
        with service.intake.places(given.count) as places:
            prompts = await self._prompts(given)
            requests = [
                self._request(prompt, lora, parameters, parameters.seed + number)
                for prompt in prompts
                for number in range(parameters.count)
            ]
            answers = list(self._answers(given, prompts))
            scored = parameters.logprobs is not None
            shape = self._shape(parameters.model, service.bytes_of, scored=scored, counted=parameters.usage)
            counted = sum(map(len, prompts))
            service.metrics.prompt_tokens.inc(counted)
            try:
                with service.intake.sequences(requests, places) as sequences:
                    if parameters.stream:
                        await self._stream(sequences, answers, shape, counted, start, send, usage=parameters.usage)
                    else:
                        pieces = await self._whole(sequences, answers, start)
                        usage = usage_of(counted, _tokens(answers))
                        response = JSONResponse(shape.answer(pieces, [each.ending for each in answers], usage))
                        await response(scope, receive, send)
            finally:
                service.metrics.new_tokens.inc(_tokens(answers))
                service.metrics.seconds.observe(time.perf_counter() - start)

    # --- from the body to requests

    async def _prompts(self, given: Completion | ChatCompletion) -> list[list[int]]:
        """The token ids of each prompt; texts are encoded in other threads. Raises Refused if that fails."""
        if isinstance(given, ChatCompletion):
            return [await self._of_messages(given)]
        return [
            await self._encoded(prompt, "prompt", whole=True) if isinstance(prompt, str) else prompt
            for prompt in given.prompts
        ]

    async def _of_messages(self, given: ChatCompletion) -> list[int]:
        service, chat = self._service, self._service.tokenizer.chat
        if chat is None:
            message = "the bundle has no chat template; use /v1/completions with a text"
            raise Refused(400, message, param="messages", code="BU610")
        async with service.rendering:
            try:
                text = await asyncio.to_thread(chat.render, given.messages, given.variables)
            except BringupError as error:
                raise of_request(error, "messages") from None
        return await self._encoded(text, "messages", whole=False)

    async def _encoded(self, text: str, param: str, *, whole: bool) -> list[int]:
        service = self._service
        most = service.batch.max_input_len * service.limits.characters
        if len(text) > most:
            message = f"`{param}` has {len(text):,} characters, and the limit of a prompt is {most:,}"
            raise Refused(400, message, param=param, code=CONTEXT)
        try:
            return await asyncio.to_thread(service.tokenizer.encode, text, whole=whole)
        except BringupError as error:
            raise of_request(error, param) from None

    def _request(self, prompt: list[int], lora: str | None, parameters: Parameters, seed: int) -> Request:
        batch, eos = self._service.batch, self._service.tokenizer.eos
        request = Request(
            prompt, max_new_tokens=1, temperature=parameters.temperature, top_p=parameters.top_p,
            top_k=parameters.top_k, seed=seed % SEEDS, lora=lora,
            eos=parameters.ends if parameters.ignore_eos else parameters.ends | eos,
            presence_penalty=parameters.presence, frequency_penalty=parameters.frequency, logit_bias=parameters.bias,
            logprobs=parameters.logprobs, prompt_logprobs=parameters.echo and parameters.logprobs is not None,
        )  # fmt: skip
        if (size := batch.manifest["vocab_size"]) <= max(parameters.bias, default=-1):
            message = f"`logit_bias` has token {max(parameters.bias)}, which is not in the vocabulary of {size}"
            raise Refused(400, message, param="logit_bias", code="BU015")
        try:
            batch.check(request)
        except BringupError as error:
            raise of_request(error, "prompt" if self._shape is CompletionShape else "messages") from None
        return replace(request, max_new_tokens=tokens_left(parameters, len(prompt), batch.max_tokens))

    # --- from tokens to an answer

    def _answers(self, given: Completion | ChatCompletion, prompts: Sequence[list[int]]) -> Iterator[Answer]:
        """An empty answer for each sequence."""
        service, parameters = self._service, given.parameters
        texts = given.prompts if isinstance(given, Completion) else [""]
        for text, prompt in zip(texts, prompts, strict=True):
            echo = None
            if parameters.echo:
                stream = service.tokenizer.stream(skip_special=True)
                echo = echo_of(text if isinstance(text, str) else "", prompt, stream)
            for _ in range(parameters.count):
                stream = service.tokenizer.stream(skip_special=True)
                yield Answer(stream, parameters.stops, echo, is_empty=parameters.max_tokens == 0)

    async def _whole(self, sequences: Sequences, answers: Sequence[Answer], start: float) -> list[Piece]:
        """All answers, each as one piece. Raises Refused if a sequence fails."""
        pieces: list[list[Piece]] = [[] for _ in answers]
        async for index, update in sequences:
            self._first(answers, start)
            pieces[index].append(answers[index].push(update))
            if answers[index].ending:
                sequences.close(index)
        return [Piece("".join(x.text for x in parts), [y for x in parts for y in x.tokens]) for parts in pieces]

    async def _stream(
        self, sequences: Sequences, answers: Sequence[Answer], shape: Shape, counted: int, start: float, send: Send,
        *, usage: bool,
    ) -> None:  # fmt: skip
        """Sends events as text becomes final. An error before the first event is raised; later it is the last event."""
        begun: set[int] = set()
        try:
            async for index, update in sequences:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
                self._first(answers, start)
                piece = answers[index].push(update)
                events = [] if index in begun else shape.begin(index)
                begun.add(index)
                if piece.text or piece.tokens:
                    events.append(shape.event(index, piece, None))
                if ending := answers[index].ending:
                    events.append(shape.event(index, Piece(""), ending))
                    sequences.close(index)
                if events:
                    await _send_events(send, *map(json.dumps, events))
        except Refused as error:
            if not begun:
                raise
            await _send_events(send, json.dumps(error.body()))
        else:
            last = [json.dumps(shape.last(usage_of(counted, _tokens(answers))))] if usage else []
            await _send_events(send, *last, "[DONE]")
        await send({"type": "http.response.body", "body": b""})

    def _first(self, answers: Sequence[Answer], start: float) -> None:
        if not _tokens(answers):
            self._service.metrics.first.observe(time.perf_counter() - start)


def endpoints(service: Service) -> dict[str, Generation]:
    """The endpoints by path."""
    return {
        "/v1/completions": Generation(service, completion, CompletionShape),
        "/v1/chat/completions": Generation(service, chat_completion, ChatShape),
    }


def _tokens(answers: Sequence[Answer]) -> int:
    return sum(answer.tokens for answer in answers)


async def _send_events(send: Send, *texts: str) -> None:
    """Sends events (https://html.spec.whatwg.org/multipage/server-sent-events.html), one line `data` each."""
    body = "".join(f"data: {text}\n\n" for text in texts).encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
