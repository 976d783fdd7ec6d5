"""HTTP/1.1 by uvicorn and h11, with limits to the time that a client may take to send what nobody waits for.

uvicorn ends connections that say nothing between requests; one that sends a byte now and then it would hold for good.
What is left of a body once its request is answered is read, and dropped: a client that is still sending would not see
its answer where the connection was closed.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bringup.compile.serve.refused import Refused


class Protocol(H11Protocol):
    """A connection. `seconds` is the limit for a head, and for the rest of a body behind its answer."""

    seconds: ClassVar[float]
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self._arm()  # uvicorn creates this when a connection is accepted

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, in the form of all errors."""
        self._disarm()
        body = Refused(400, "the request is no valid HTTP, or its headers are too long").encoded()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """The time runs while a head is not whole, or an answered body."""
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:
            self._arm()
        else:
            self._disarm()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self.transport.abort()


def protocol_of(seconds: float) -> type[Protocol]:
    """The class of connections with this limit."""
    return type("Protocol", (Protocol,), {"seconds": seconds})
