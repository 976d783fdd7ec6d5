"""The body of a request: a JSON object of bounded size, read in bounded time; and the detection of a disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from bringup.adapters.checkpoints.bounded_json import strict_json
from bringup.compile.serve.error_response import Refused
from bringup.compile.serve.limits import Limits

Result = TypeVar("Result")


class Disconnected(Exception):
    """The client has disconnected: no one reads the answer."""


async def read_object(scope: Scope, receive: Receive, limits: Limits) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises Refused: 415 for another type than application/json (web pages can send those without the server's
    permission), 413 for a long body, 408 for a slow one, 400 for a body that is not JSON. Raises Disconnected.
    """
    headers = Headers(scope=scope)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "the body is not of type application/json")
    if headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "the body is encoded; send it without a content-encoding")
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limits.body):
        raise _too_long(limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            text = await _read(receive, limits)
    except TimeoutError:
        message = f"the body took over {limits.body_seconds:g} s"
        raise Refused(408, message, headers={"connection": "close"}) from None
    try:
        return strict_json(text, finite=True)
    except ValueError as error:
        raise Refused(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    text = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        text += message.get("body", b"")
        if len(text) > limits.body:
            raise _too_long(limits)
        if not message.get("more_body"):
            return bytes(text)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. If the client disconnects, `work` is cancelled, and Disconnected raised.

    The body must have been read before.
    """
    worker, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise Disconnected
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_long(limits: Limits) -> Refused:
    message = f"the body is longer than the limit of {limits.body:,} bytes"
    return Refused(413, message, code="body_too_long")
