"""GGUF files of the Hugging Face hub: which are fetched, and what is said where several could be meant."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.adapters.servers import POLL
from tests.cli.headers import write_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import json, sys
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
try:
    found = open_checkpoint(sys.argv[1])
    print(json.dumps([found.format, len(found.headers), found.provenance["revision"], found.source]))
except BringupError as error:
    print(error.findings[0].code, error.findings[0].message, "help:", error.findings[0].help)
"""


class Hub:
    """A server with the repository org/toy, as the hub's API answers; `asked` are the files that were fetched."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.requests = files, list[str]()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=self.command == "GET")

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(POLL,), daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        if path.startswith("/api/models/org/toy/tree/"):
            tree = [{"type": "file", "path": name, "size": len(d), "oid": "0"} for name, d in self.files.items()]
            return self.send(request, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
        if path.startswith("/api/models/org/toy"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "org/toy", "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return self.send(request, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if name not in self.files:
            request.send_response(404)
            request.end_headers()
            return None
        if body:
            self.requests.append(name)
        data = self.files[name]
        return self.send(request, data, {"ETag": hashlib.sha256(data).hexdigest(), "X-Repo-Commit": COMMIT}, body)

    def send(self, request: BaseHTTPRequestHandler, data: bytes, headers: dict[str, str], body: bool) -> None:
        request.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def opened(self, source: str, cache: Path, **places: str) -> str:
        """What a fresh process says (huggingface_hub reads its endpoint when it is imported)."""
        environment = {
            "HF_HUB_CACHE": str(cache),
            "HF_ENDPOINT": self.endpoint,
            "PATH": "/usr/bin:/bin",
            "no_proxy": "*",
        }
        environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", **places}
        done = subprocess.run(
            [sys.executable, "-c", ASK, source], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "tiny.gguf").read_bytes()


@pytest.fixture
def serve() -> Iterator[type[Hub]]:
    hubs: list[Hub] = []

    def start(files: dict[str, bytes]) -> Hub:
        hubs.append(Hub(files))
        return hubs[-1]

    yield start  # pyright: ignore[reportReturnType]
    for hub in hubs:
        hub.server.shutdown()
        hub.server.server_close()


def test_a_repository_with_one_gguf_file(tmp_path: Path, gguf: bytes, serve) -> None:
    hub = serve({"README.md": b"", "tiny.gguf": gguf, "tokenizer.json": b"{}"})
    said = json.loads(hub.opened("hf://org/toy", tmp_path / "cache"))
    assert said[0] == "gguf"
    assert said[2:] == [COMMIT, "hf://org/toy"]
    assert sorted(hub.requests) == ["tiny.gguf", "tokenizer.json"]


def test_several_quantisations_are_one_error(tmp_path: Path, gguf: bytes, serve) -> None:
    hub = serve({"toy-Q4_K_M.gguf": gguf, "toy-Q8_0.gguf": gguf, "BF16/toy-BF16.gguf": gguf})
    said = hub.opened("hf://org/toy", tmp_path / "cache")
    assert said.startswith("BU218 `hf://org/toy` has 3 GGUF files: ")
    assert all(f"`{name}`" in said for name in hub.files)
    assert "such as hf://org/toy/toy-Q4_K_M.gguf" in said
    assert hub.requests == []


@pytest.mark.parametrize("name", ["toy-Q8_0.gguf", "BF16/toy-BF16.gguf"])
def test_the_file_that_is_named_is_fetched_and_cached(tmp_path: Path, gguf: bytes, serve, name: str) -> None:
    hub = serve({"toy-Q4_K_M.gguf": b"GGUF", "toy-Q8_0.gguf": gguf, "BF16/toy-BF16.gguf": gguf, "config.json": b"{}"})
    first = hub.opened(f"hf://org/toy/{name}@main", tmp_path / "cache")
    assert json.loads(first)[0] == "gguf"
    assert sorted(hub.requests) == sorted([name, "config.json"])
    again = hub.opened(f"hf://org/toy/{name}", tmp_path / "cache", HF_HUB_OFFLINE="1")
    assert json.loads(again)[:3] == json.loads(first)[:3]


def test_a_file_that_is_not_there(tmp_path: Path, gguf: bytes, serve) -> None:
    hub = serve({"toy-Q4_K_M.gguf": gguf})
    said = hub.opened("hf://org/toy/toy-Q4_K_S.gguf", tmp_path / "cache")
    assert said.startswith("BU912 `org/toy` at `main` has no file `toy-Q4_K_S.gguf`; it has `toy-Q4_K_M.gguf`")
    assert "did you mean `toy-Q4_K_M.gguf`?" in said


def test_safetensors_are_preferred(tmp_path: Path, gguf: bytes, serve) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    model = len(header).to_bytes(8, "little") + header + bytes(4)
    hub = serve({"model.safetensors": model, "toy.gguf": gguf, "onnx/model.safetensors": model, "config.json": b"{}"})
    assert json.loads(hub.opened("hf://org/toy", tmp_path / "cache"))[0] == "safetensors"
    assert sorted(hub.requests) == ["config.json", "model.safetensors"]
