"""What servers do that a check has to survive or report."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest
from safetensors.numpy import save

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.adapters.sources.remote import client
from bringup.adapters.sources.remote.client import Client
from bringup.diagnostics import BringupError
from tests.adapters.remote.checks import checked
from tests.adapters.servers import Server


def test_a_flaky_server(llama: dict[str, bytes]) -> None:
    """Errors that pass, connections that end in the middle, and none that answers at once."""

    def flaky(server: Server, request: BaseHTTPRequestHandler) -> bool:
        turn = len(server.requests) % 4
        if turn == 1:
            server.send(request, 503, b"", {"Retry-After": "0"})
        elif turn == 2:
            request.connection.close()
        elif turn == 3:
            data = server.files.get(request.path.lstrip("/"), b"")
            if request.headers.get("Range") is None or len(data) < 20_000:
                return False
            start = int(request.headers["Range"][6:].partition("-")[0])
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            request.send_header("Content-Length", str(len(data) - start))
            request.end_headers()
            request.wfile.write(data[start : start + 10])
            request.connection.close()
        else:
            return False
        return True

    with Server(llama, flaky) as server:
        checked(server.url)


@pytest.mark.parametrize("broken", [False, True], ids=["a shorter range", "a connection that ends early"])
def test_a_server_that_answers_with_less(broken: bool) -> None:
    """Any number of such replies: each is followed by a request for the rest, after a pause where one broke."""
    data = np.random.default_rng(0).bytes(20_000)

    def some(server: Server, request: BaseHTTPRequestHandler) -> bool:
        start, last = map(int, request.headers["Range"][6:].split("-"))
        last = last if broken else min(last, start + 999)
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
        request.send_header("Content-Length", str(last + 1 - start))
        request.end_headers()
        request.wfile.write(data[start : start + 1000])
        request.close_connection = True
        return True

    pauses: list[float] = []
    with Server({}, some) as server:
        found, facts = Client(server.url, pause=pauses.append).range(f"{server.url}/x", 0, 15_000)
        assert (found, facts.size) == (data[:15_000], len(data))
        assert len(server.requests) == 15
    assert pauses == [client.FIRST_PAUSE] * (14 if broken else 0)


def test_retries_are_bounded() -> None:
    def busy(server: Server, request: BaseHTTPRequestHandler) -> bool:
        server.send(request, 503, b"")
        return True

    pauses: list[float] = []
    with Server({}, busy) as server, pytest.raises(BringupError, match="BU913"):
        Client(server.url, pause=pauses.append).read_small(server.url, 100)
    assert len(server.requests) == client.ATTEMPTS
    assert len(pauses) == client.ATTEMPTS - 1


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (200, {"Content-Length": "1x"}, "BU915"),
        (200, {"Content-Length": "9" * 5000}, "BU915"),
        (206, {"Content-Range": f"bytes 0-{'9' * 5000}/{'9' * 5000}"}, "BU915"),
        (302, {"Location": "http://[zz"}, "BU915"),
        (503, {"Retry-After": "\u00b2"}, "BU913"),
    ],
    ids=["letters", "digits", "range", "location", "superscript"],
)
def test_headers_that_are_not_http(status: int, headers: dict[str, str], code: str) -> None:
    def answer(server: Server, request: BaseHTTPRequestHandler) -> bool:
        server.send(request, status, b"{}", headers)
        return True

    with Server({}, answer) as server:
        with pytest.raises(BringupError, match=code):
            Client(server.url, pause=lambda seconds: None).range(f"{server.url}/x", 0, 2)
        if status == 200:
            with pytest.raises(BringupError, match=code):
                Client(server.url).read_small(f"{server.url}/x", 2)


def test_pauses_grow(monkeypatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.2)
    pauses: list[float] = []
    with pytest.raises(BringupError, match="BU913"):
        Client("http://127.0.0.1:1", pause=pauses.append).read_small("http://127.0.0.1:1/x", 100)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])


def test_a_server_without_ranges() -> None:
    """A header is read from the start of the file and the connection closed; a tensor far behind it is refused."""
    data = save({"a": np.zeros(30 << 20, np.float32), "b": np.ones(4, np.float32)})

    def whole(server: Server, request: BaseHTTPRequestHandler) -> bool:
        del request.headers["Range"]
        return False

    with Server({"model.safetensors": data}, whole) as server:
        opened = open_checkpoint(f"{server.url}/model.safetensors", headers_only=True)
        assert list(opened.headers) == ["a", "b"]
        assert server.sent < len(data) // 2
        with pytest.raises(BringupError, match="BU915"):
            opened.read(opened.headers["b"])


def test_a_file_that_changes_in_between() -> None:
    one, two = (save({"a": np.full(10_000, value, np.float32)}) for value in (1, 2))
    with Server({"model.safetensors": one}) as server:
        opened = open_checkpoint(f"{server.url}/model.safetensors", headers_only=True)
        server.files["model.safetensors"] = two
        with pytest.raises(BringupError, match="BU916"):
            opened.read(opened.headers["a"])
