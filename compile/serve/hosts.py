"""The host names that a server on this machine accepts.

A web page can resolve its own host name to 127.0.0.1 (DNS rebinding): a browser then regards the server as the site,
and lets the page read its answers. The header Host has the name that the browser used.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bringup.compile.serve.error_response import Refused


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_of(host: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """The accepted values of Host besides loopback addresses; None, for any, if `host` is not a loopback address."""
    return frozenset(map(_name, ("localhost", host, *allowed))) if is_loopback(host) else None


class Named:
    """Rejects requests whose Host is another name, 421 (RFC 9110, 15.5.20). Browsers always send a Host."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [_name(each) for each in Headers(scope=scope).getlist("host")]
        if all(host in self._names or is_loopback(host) for host in hosts):
            await self._app(scope, receive, send)
            return
        message = "the header Host names another server; allow the name of a proxy with --allow-host NAME"
        await Refused(421, message, code="wrong_host").response()(scope, receive, send)


def _name(host: str) -> str:
    """A host in lower case without its port; an IPv6 address without its brackets."""
    host = host.strip().lower()
    name = (
        host[1:].partition("]")[0] if host.startswith("[") else host if host.count(":") > 1 else host.partition(":")[0]
    )
    return name.removesuffix(".")
