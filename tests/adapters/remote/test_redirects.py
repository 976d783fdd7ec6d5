"""Where a check goes, and with which token: schemes, private addresses, hosts, and nowhere offline."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest
from safetensors.numpy import save

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.adapters.sources.remote.client import is_private
from bringup.diagnostics import BringupError
from tests.adapters.remote.checks import checked
from tests.adapters.servers import COMMIT, Server, hub


def redirecting(target: str):
    def redirect(server: Server, request: BaseHTTPRequestHandler) -> bool:
        server.send(request, 302, b"", {"Location": target + request.path})
        return True

    return redirect


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1", "https://127.0.0.1:1", "gopher://x"])
def test_redirects_to_another_scheme(target: str) -> None:
    with Server({}, redirecting(target)) as server, pytest.raises(BringupError, match="BU914"):
        open_checkpoint(f"{server.url}/model.safetensors", headers_only=True)
    assert len(server.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_redirects_to_a_private_address(host: str) -> None:
    """Of another host than the user's own; nothing is requested there."""
    with Server({"model.safetensors": save({"a": np.ones(3)})}, host="127.0.0.2") as inner:
        port = inner.server.server_port
        with Server({}, redirecting(f"http://{host}:{port}")) as server:
            with pytest.raises(BringupError) as caught:
                open_checkpoint(f"{server.url}/model.safetensors", headers_only=True)
            if host == "localhost":  # which refuses the connection or is refused, and is not read in either case
                assert caught.value.findings[0].code in ("BU913", "BU914")
                return
            assert caught.value.findings[0].code == "BU914"
            assert "an address of a private network" in caught.value.findings[0].message
        assert inner.requests == []


def test_a_redirect_within_the_user_s_own_host(llama: dict[str, bytes]) -> None:
    with Server(llama) as store, Server({}, redirecting(store.url)) as server:
        checked(server.url)


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True), ("10.1.2.3", True), ("192.168.1.1", True), ("172.16.0.1", True), ("169.254.169.254", True),
        ("0.0.0.0", True), ("::1", True), ("fe80::1%eth0", True), ("fd00::1", True), ("::ffff:127.0.0.1", True),
        ("8.8.8.8", False), ("2606:4700::1111", False),
    ],
)  # fmt: skip
def test_private_addresses(address: str, private: bool) -> None:
    assert is_private(address) is private


def test_the_token_stays_with_its_host(llama: dict[str, bytes], monkeypatch) -> None:
    """The hub redirects to a store of its own, which needs no token."""
    with Server({f"org/toy/resolve/{COMMIT}/{name}": data for name, data in llama.items()}) as store:

        def redirect(server: Server, request: BaseHTTPRequestHandler) -> bool:
            return "/resolve/" in request.path and redirecting(store.url)(server, request)

        with hub(llama, redirect) as server:
            monkeypatch.setenv("HF_ENDPOINT", server.url)
            monkeypatch.setenv("HF_TOKEN", "secret")
            checked("hf://org/toy")
            assert set(server.tokens) == {"Bearer secret"}
            assert set(store.tokens) == {None}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("https://user:secret@example.org/model.safetensors", "not an address of a checkpoint"),
        ("https://example.org/model.safetensors?token=1", "not an address of a checkpoint"),
        ("https://example.org/a/../model.safetensors", "not an address of a checkpoint"),
        ("https://example.org/..%2Fmodel.safetensors", "not an address of a checkpoint"),
        ("https:///model.safetensors", "not an address of a checkpoint"),
        ("http://8.8.8.8/model.safetensors", "without encryption"),
    ],
)
def test_addresses_that_are_refused(source: str, said: str) -> None:
    with pytest.raises(BringupError) as caught:
        open_checkpoint(source, headers_only=True)
    assert caught.value.findings[0].code == "BU035"
    assert said in caught.value.findings[0].message


def test_offline(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for source in ("hf://org/toy", "modelscope://org/toy"):
        with pytest.raises(BringupError, match="BU911"):
            open_checkpoint(source, headers_only=True)
