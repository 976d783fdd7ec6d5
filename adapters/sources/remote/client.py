"""HTTP requests for byte ranges of files, with retries, and with restrictions on redirects.

Ranges: RFC 9110, sections 13 (If-Range) and 14. A redirect keeps its scheme. It may lead to an address of a private
network (RFC 1918, RFC 4193, loopback, link-local) only if the user's own URL names that host, so that a public server
cannot make this machine read from inside its network. The address is checked on the connection itself, so it cannot
change after the check. If a proxy is set, the proxy decides which addresses can be reached. A token is sent to the host
of the user's URL only.
"""

from __future__ import annotations

import errno
import http.client
import ipaddress
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bringup.diagnostics import BringupError, fail
from bringup.shown import short
from bringup.system.os_errors import reason

ATTEMPTS = 6  # for one request
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds between attempts; each is twice the previous one
TIMEOUT = 30.0  # seconds without a byte
MAX_REDIRECTS = 5
MAX_IGNORED = 100_000_000  # bytes read from the start if a server does not support ranges: the largest header
CHUNK = 1 << 20
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_NUMBER = re.compile(r"[0-9]{1,18}")
T = TypeVar("T")
_BUSY = {408, 425, 429, 500, 502, 503, 504}


class _Refused(Exception):
    """A redirect or a connection to an address that is not allowed."""


@dataclass(slots=True)
class Client:
    """Reads files below a URL that the user named; `token` is sent to its host only. `received` counts bytes of bodies.

    `ranged`: the last response was a range, and not a complete file.
    """

    home: str
    token: str = ""
    received: int = 0
    requests: int = 0
    ranged: bool = True
    pause: Callable[[float], None] = field(default=time.sleep)

    def read_small(self, url: str, limit: int) -> bytes:
        """A small file. Raises BU913 to BU915, and BU916 for more than `limit` bytes."""

        def read(response: http.client.HTTPResponse) -> bytes:
            data = response.read(limit + 1)
            self.received += len(data)
            if len(data) < min(limit + 1, _length(response, 0)):
                raise http.client.IncompleteRead(data)
            return data

        data = self._fetch(url, dict[str, str], read)
        if len(data) > limit:
            raise fail(
                "BU916",
                f"`{url}` has more than {limit:,} bytes",
                help="name another file: files of this kind are smaller",
            )
        return data

    def range(self, url: str, start: int, count: int, known: Facts | None = None) -> tuple[bytes, Facts]:
        """`count` bytes from `start` on, fewer at the end of the file, and the facts of the file.

        With `known`, a file that has changed since raises BU916. Bytes that arrive before a connection breaks are not
        requested again. A server may respond with a shorter range than requested (RFC 9110, section 15.3.7): the rest
        is requested after it. Raises BU913 to BU916.
        """
        found = bytearray()
        facts = known

        def read(response: http.client.HTTPResponse) -> None:
            nonlocal facts
            facts, end = self._checked(url, response, start + len(found), facts)
            skip = start + len(found) if response.status == 200 else 0
            while skip > 0 and (piece := response.read(min(skip, CHUNK))):
                self.received += len(piece)
                skip -= len(piece)
            while len(found) < min(count, max(0, end - start)):
                piece = response.read(min(count - len(found), CHUNK))
                if not piece:
                    raise http.client.IncompleteRead(b"")
                self.received += len(piece)
                found.extend(piece)

        def headers() -> dict[str, str]:
            wanted = {"Range": f"bytes={start + len(found)}-{start + count - 1}"}
            return wanted | ({"If-Range": facts.tag} if facts and facts.tag else {})

        self._fetch(url, headers, read, lambda: len(found))
        assert facts is not None, "read sets them"
        while len(found) < min(count, facts.size - start):
            self._fetch(url, headers, read, lambda: len(found))
        return bytes(found), facts

    def _checked(
        self, url: str, response: http.client.HTTPResponse, start: int, known: Facts | None
    ) -> tuple[Facts, int]:
        """The facts of the file in a response, and the offset in the file at which its bytes end."""
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        tag = "" if tag.startswith("W/") else tag  # a weak one may stay the same if bytes change
        self.ranged = response.status == 206
        if self.ranged:
            match = _RANGE.fullmatch(response.headers.get("Content-Range") or "")
            if not match or int(match[1]) != start or int(match[2]) < start:
                raise fail("BU915", f"the server of `{url}` answers with another range than requested", help=_DOWNLOAD)
            size = int(match[3])
            end = min(int(match[2]) + 1, size)
        else:
            size = end = _length(response, -1)
            if size < 0 or start > MAX_IGNORED:
                raise fail("BU915", f"the server of `{url}` sends complete files only, not byte ranges", help=_DOWNLOAD)
        if known and (known.size != size or (tag and known.tag and known.tag != tag)):
            raise fail("BU916", f"`{url}` has changed while it was read", help="run again, when it is complete")
        return Facts(size, tag or (known.tag if known else "")), end

    def _fetch(
        self,
        url: str,
        headers: Callable[[], dict[str, str]],
        use: Callable[[http.client.HTTPResponse], T],
        progress: Callable[[], int] = lambda: 0,
    ) -> T:
        """One request, repeated after a failure that may be temporary.

        `progress` counts the bytes that need not be requested again. ATTEMPTS and pauses are counted from the last
        failure before which some arrived.
        """
        pause, message, attempt, before = FIRST_PAUSE, "", 0, progress()
        while attempt < ATTEMPTS:
            self.requests += 1
            try:
                return self._once(url, headers(), use)
            except urllib.error.HTTPError as error:
                message, after = _busy(url, error), error.headers.get("Retry-After") or ""
                pause = max(pause, min(float(after), LONGEST_PAUSE)) if _NUMBER.fullmatch(after) else pause
            except _Refused as error:
                raise _unsafe(url, str(error)) from None
            except (OSError, http.client.HTTPException) as error:
                cause = getattr(error, "reason", error)
                unknown = isinstance(cause, socket.gaierror) or getattr(cause, "errno", 0) == errno.ENETUNREACH
                message = (reason(cause) if isinstance(cause, OSError) else str(cause)) or type(cause).__name__
                if unknown and attempt:  # the name does not exist, or there is no network
                    raise fail("BU913", f"`{url}` cannot be reached: {message}", help=_AGAIN) from None
                if isinstance(cause, _Refused):
                    raise _unsafe(url, str(cause)) from None
            if progress() > before:
                pause, attempt, before = FIRST_PAUSE, 0, progress()
            attempt += 1
            if attempt < ATTEMPTS:
                self.pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        raise fail("BU913", f"`{url}` cannot be reached, {ATTEMPTS} times: {message}", help=_AGAIN)

    def _once(self, url: str, headers: dict[str, str], use: Callable[[http.client.HTTPResponse], T]) -> T:
        """One request. Raises BU915 for headers that cannot be read, such as an invalid redirect address."""
        try:
            with self._opened(url, headers) as response:
                return use(response)
        except OSError:  # an error of a certificate is also a ValueError
            raise
        except ValueError as error:
            message = f"the server of `{url}` did not answer in HTTP: {short(str(error))}"
            raise fail("BU915", message, help=_DOWNLOAD) from None

    @contextmanager
    def _opened(self, url: str, headers: dict[str, str]) -> Generator[http.client.HTTPResponse]:
        sent = {"User-Agent": "bringup", "Accept-Encoding": "identity", **headers}
        request = urllib.request.Request(url, headers=sent)
        if self.token and _place(url) == _place(self.home):
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        with _opener(self).open(request, timeout=TIMEOUT) as response:
            yield response


def _busy(url: str, error: urllib.error.HTTPError) -> str:
    """The message for a temporary error. Raises BU914 and BU916 for all others."""
    with error:
        if error.code == 416:
            raise fail("BU916", f"`{url}` is shorter than it was", help="run again") from None
        message = f"HTTP {error.code} {error.reason}"
        if error.code not in _BUSY:
            raise refused(url, message) from None
        return message


def _length(response: http.client.HTTPResponse, absent: int) -> int:
    """Content-Length, or `absent`. Raises ValueError if it is not a number."""
    text = response.headers.get("Content-Length")
    if text is not None and not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"Content-Length {text[:40]!r}")
    return absent if text is None else int(text)


@dataclass(frozen=True, slots=True)
class Facts:
    """The size of a file, and a tag that changes with its bytes, "" if the server sends none."""

    size: int
    tag: str


_AGAIN = "check the address and the network, and run again: complete files are not fetched again"
_DOWNLOAD = "download the file, and name it as the checkpoint"


def refused(url: str, why: str) -> BringupError:
    """BU914: the server responded, and another attempt would get the same response."""
    help = "check the address; for private files, set the token of its hub (HF_TOKEN)"
    return fail("BU914", f"the server rejected `{url}`: {why}", help=help)


def _unsafe(url: str, why: str) -> BringupError:
    help = "download the file by other means, and name it as the checkpoint"
    return fail("BU914", f"`{url}` leads to an address that bringup does not request: {why}", help=help)


def is_private(address: str) -> bool:
    """Whether an IP address is outside of the public internet."""
    return not ipaddress.ip_address(address.partition("%")[0]).is_global


def _place(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port


def _opener(client: Client) -> urllib.request.OpenerDirector:
    home = (urlsplit(client.home).hostname or "").lower()

    def connect(place: tuple[str, int], *words: Any, **more: Any) -> socket.socket:
        connection = socket.create_connection(place, *words, **more)
        address = str(connection.getpeername()[0])
        if place[0].lower() != home and not _is_proxy(place[0]) and is_private(address):
            connection.close()
            raise _Refused(f"`{place[0]}` is {address}, an address of a private network")
        return connection

    class Plain(http.client.HTTPConnection):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            self._create_connection = connect

    class Secure(http.client.HTTPSConnection):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            self._create_connection = connect

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, req)

    class Redirects(urllib.request.HTTPRedirectHandler):
        max_redirections = MAX_REDIRECTS

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if urlsplit(newurl).scheme != urlsplit(str(req.full_url)).scheme:
                raise _Refused(f"it redirects to `{newurl[:200]}`, another scheme")
            found = super().redirect_request(req, fp, code, msg, headers, newurl)
            if found and client.token and _place(newurl) == _place(client.home):
                found.add_unredirected_header("Authorization", f"Bearer {client.token}")
            return found

    return urllib.request.build_opener(PlainHandler, SecureHandler, Redirects)


def _is_proxy(host: str) -> bool:
    with suppress(ValueError):
        return any(urlsplit(url).hostname == host for url in urllib.request.getproxies().values())
    return False


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests to hubs, as huggingface_hub reads it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
