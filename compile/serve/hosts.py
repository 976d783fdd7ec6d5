"""The names that a server on this machine is called by.

A web page can have the name of its own site lead to 127.0.0.1 (DNS rebinding): a browser then takes the server for the
site, and lets the page read its answers. The header Host has the name that the browser was given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bringup.compile.serve.refused import Refused


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is served there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_of(host: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """What Host may be besides loopback addresses, where `host` is one; None where the server is open to others."""
    return frozenset(map(_name, ("localhost", host, *allowed))) if is_loopback(host) else None


class Named:
    """Refuses requests whose Host is another name, 421 (RFC 9110, 15.5.20). One without a Host is from no browser."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [_name(each) for each in Headers(scope=scope).getlist("host")]
        if all(host in self._names or is_loopback(host) for host in hosts):
            await self._app(scope, receive, send)
            return
        message = "the header Host names another server; a proxy's name is allowed by --allow-host NAME"
        await Refused(421, message, code="wrong_host").response()(scope, receive, send)


def _name(host: str) -> str:
    """A host without its port, and an IPv6 address without its brackets."""
    host = host.strip().lower()
    name = (
        host[1:].partition("]")[0] if host.startswith("[") else host if host.count(":") > 1 else host.partition(":")[0]
    )
    return name.removesuffix(".")
