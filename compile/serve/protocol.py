"""HTTP/1.1 with uvicorn and h11, with limits on the time that a client may take to send headers and bodies.

uvicorn closes idle connections between requests, but would keep one open that sends a byte now and then. If a request
is answered before its body is complete, the rest of the body is read and discarded: a client that is still sending
would not receive the answer if the connection were closed.

uvicorn's own limit counts connections when a request has arrived, so if many clients connect at once, all are rejected.
Here a connection is counted when it is accepted, so that the first ones are served.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bringup.compile.serve.connections import CROWDED, Room
from bringup.compile.serve.error_response import Refused

MOMENT = 1.0  # seconds for the head of a request that is rejected


class Protocol(H11Protocol):
    """A connection. `seconds` is the limit for a head, and for the rest of a body after its answer. `room` is the limit
    for the connections of a server, `opened`.
    """

    seconds: ClassVar[float]
    room: ClassVar[Room]
    opened: ClassVar[set[Protocol]]
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)  # uvicorn creates this when a connection is accepted
        self.opened.add(self)
        beyond = len(self.opened) - self.room.served
        if beyond <= 0:
            self._arm(self.seconds)
        else:
            self.app_state = self.app_state | {CROWDED: True}
            self._arm(min(MOMENT, self.seconds) if beyond <= self.room.rejected else 0)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.opened.discard(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The response to invalid HTTP, in the format of all errors."""
        self._disarm()
        body = Refused(400, "the request is not valid HTTP, or its headers are too long").encoded()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Runs the deadline while a head, or the body of an answered request, is incomplete."""
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:
            self._arm(self.seconds)
        else:
            self._disarm()

    def _arm(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self.transport.abort()


def protocol_of(seconds: float, room: Room) -> type[Protocol]:
    """The class of the connections of one server, with these limits."""
    return type("Protocol", (Protocol,), {"seconds": seconds, "room": room, "opened": set()})
