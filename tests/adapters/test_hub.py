"""The Hugging Face hub: its cache, and servers that do not answer."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.adapters.servers import POLL
from tests.adapters.written import ONE, raises, shards


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache and no way to the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def snapshot(hub: Path, name: str, commit: str) -> Path:
    model = hub / f"models--{name.replace('/', '--')}"
    folder = model / "snapshots" / commit
    folder.mkdir(parents=True)
    (model / "refs").mkdir(exist_ok=True)
    return shards(folder, model={"a": ONE})


def test_a_cached_model(hub: Path) -> None:
    snapshot(hub, "org/toy", "0123abcd")
    (hub / "models--org--toy/refs/main").write_text("0123abcd")
    for source in ("hf://org/toy", "hf://org/toy@main", "hf://org/toy@0123abcd"):
        checkpoint = open_checkpoint(source)
        assert checkpoint.provenance["revision"] == "0123abcd"
        assert checkpoint.source == source
        assert set(checkpoint.headers) == {"a"}


@pytest.mark.parametrize("source", ["hf://org/toy@v2", "hf://gpt2"])
def test_a_model_that_is_not_cached_while_offline(hub: Path, source: str) -> None:
    snapshot(hub, "org/toy", "0123abcd")
    with raises("BU911", rf"{re.escape(str(hub))}/models--.*HF_HUB_OFFLINE.*hf download"):
        open_checkpoint(source)


ASK = """
import sys, time
pauses = []
time.sleep = pauses.append  # requests are made again, after ever longer pauses
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
try:
    open_checkpoint("hf://org/toy")
except BringupError as error:
    print(error.findings[0].code, error.findings[0].message, "; pauses:", sum(pauses))
"""


def ask(hub: Path, endpoint: str) -> str:
    """What a fresh process says (huggingface_hub reads its endpoint when it is imported)."""
    environment = {
        "HF_HUB_CACHE": str(hub),
        "HF_ENDPOINT": endpoint,
        "PATH": "/usr/bin:/bin",
        "no_proxy": "*",
    }
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_nobody_answers(tmp_path: Path) -> None:
    assert ask(tmp_path, "http://127.0.0.1:9").startswith("BU911 `org/toy` is not in")


def test_an_unknown_host_is_no_reason_to_wait(tmp_path: Path) -> None:
    """As without a network: the pauses of huggingface_hub's own requests would be 20 seconds."""
    answer = ask(tmp_path, "http://no-such-host.invalid")
    assert answer.startswith("BU911 `org/toy` is not in")
    assert float(answer.rpartition("pauses:")[2]) < 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "BU912 the Hugging Face hub refuses `org/toy` at `main`: "),
        (503, "BU911 `org/toy` is not in "),
        (429, "BU911 `org/toy` is not in "),
    ],
)
def test_the_hub_says_no(tmp_path: Path, status: int, said: str) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True).start()
    try:
        answer = ask(tmp_path, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert answer.startswith(said)
    assert str(status) in answer
