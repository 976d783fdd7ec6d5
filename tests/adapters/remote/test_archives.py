"""Torch and numpy files behind HTTP: their directories and headers are read by ranges, and single tensors."""

from __future__ import annotations

import io
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.adapters.sources.remote import remote_file
from tests.adapters.servers import Server, hub

LARGE = 1 << 20  # elements


def tensors() -> dict[str, np.ndarray]:
    """Large ones, which no header is near, and small ones."""
    rng = np.random.default_rng(0)
    found = {f"layers.{index}.w": rng.standard_normal((4, LARGE // 4)).astype(np.float32) for index in range(4)}
    return found | {f"layers.{index}.b": rng.standard_normal(7).astype(np.float32) for index in range(4)}


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "npz":
        np.savez(file, **tensors())
    elif kind == "compressed":
        np.savez_compressed(file, **{name: np.zeros_like(array) for name, array in tensors().items()})
    else:
        torch.save({name: torch.from_numpy(array) for name, array in tensors().items()}, file)
    return file.getvalue()


@pytest.mark.parametrize("name", ["model.npz", "pytorch_model.bin"])
def test_headers_and_tensors_by_range(name: str, tmp_path: Path) -> None:
    data = archive(name.rpartition(".")[2])
    with Server({name: data}) as server:
        opened = open_checkpoint(f"{server.url}/{name}", headers_only=True)
        assert server.sent < 0.02 * len(data)
        assert opened.format == ("numpy" if name.endswith("npz") else "torch")
        assert {key: info.shape for key, info in opened.headers.items()} == {k: a.shape for k, a in tensors().items()}
        before = server.sent
        for key in ("layers.2.b", "layers.3.w"):
            assert np.array_equal(opened.read(opened.headers[key]), tensors()[key])
        assert server.sent - before < 1.01 * tensors()["layers.3.w"].nbytes + 8192
    assert not list(tmp_path.rglob(f"*{name}*")), "nothing is downloaded, to the cache folder neither"


SMALL = {f"layers.{index}.b": np.full(1024, index, np.float32) for index in range(600)}


@pytest.mark.parametrize("kind", ["npz", "compressed", "pt"])
def test_many_small_tensors(kind: str, tmp_path: Path) -> None:
    """Headers that are near one another come together; no byte comes twice but those of the directory."""
    file = io.BytesIO()
    if kind == "pt":
        torch.save({name: torch.from_numpy(array) for name, array in SMALL.items()}, file)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(file, **SMALL)
    name = f"model.{'pt' if kind == 'pt' else 'npz'}"
    with Server({name: file.getvalue()}) as server:
        opened = open_checkpoint(f"{server.url}/{name}", headers_only=True)
        assert opened.headers.keys() == SMALL.keys()
        assert len(server.requests) < 20
        directory = 2 * (600 * 100 + 65_557 + 32_768)  # it is read twice: for the format, and for the tensors
        assert server.sent < len(file.getvalue()) + directory
        info = opened.headers["layers.300.b"]
        assert not vars(info.file)["blocks"], "dropped once the headers are read"
        assert np.array_equal(opened.read(info), SMALL["layers.300.b"])
    assert not list(tmp_path.rglob("*model*"))


def test_more_requests_than_a_download_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file of small tensors is downloaded, once."""
    monkeypatch.setattr(remote_file, "SMALL", 1 << 20)
    file = io.BytesIO()
    np.savez(file, **SMALL)
    with Server({"model.npz": file.getvalue()}) as server:
        opened = open_checkpoint(f"{server.url}/model.npz", headers_only=True, download_dir=tmp_path / "here")
        assert len(server.requests) < 14  # six of them for what may be next to it
        assert server.sent < len(file.getvalue()) + 200_000
        assert np.array_equal(opened.read(opened.headers["layers.9.b"]), SMALL["layers.9.b"])
    assert (tmp_path / "here" / "model.npz").read_bytes() == file.getvalue()


def test_compressed_and_transposed_tensors() -> None:
    data, view = archive("compressed"), io.BytesIO()
    torch.save({"w": torch.arange(12.0).reshape(3, 4).T}, view)
    with Server({"model.npz": data, "view.pt": view.getvalue()}) as server:
        opened = open_checkpoint(f"{server.url}/model.npz", headers_only=True)
        assert not opened.read(opened.headers["layers.1.w"]).any()
        opened = open_checkpoint(f"{server.url}/view.pt", headers_only=True)
        assert np.array_equal(opened.read(opened.headers["w"]), np.arange(12, dtype=np.float32).reshape(3, 4).T)


def test_shards_by_their_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a repository that has torch files only."""
    files: dict[str, bytes] = {"config.json": b"{}"}
    for number, (name, array) in enumerate(tensors().items()):
        file = io.BytesIO()
        torch.save({name: torch.from_numpy(array)}, file)
        files[f"pytorch_model-{number}.bin"] = file.getvalue()
    shards = {name: f"pytorch_model-{number}.bin" for number, name in enumerate(tensors())}
    files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": shards}).encode()
    with hub(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        opened = open_checkpoint("hf://org/toy", headers_only=True)
        assert server.sent < 0.05 * sum(map(len, files.values()))
        assert opened.headers.keys() == tensors().keys()
        assert np.array_equal(opened.read(opened.headers["layers.0.w"]), tensors()["layers.0.w"])


def test_what_has_to_be_downloaded(tmp_path: Path) -> None:
    """Torch's legacy layout, whose tensors are found one after the other; and a server that answers no ranges."""
    legacy = io.BytesIO()
    torch.save({"w": torch.arange(5.0)}, legacy, _use_new_zipfile_serialization=False)
    with Server({"old.pt": legacy.getvalue()}) as server:
        opened = open_checkpoint(f"{server.url}/old.pt", headers_only=True, download_dir=tmp_path / "old")
        assert np.array_equal(opened.read(opened.headers["w"]), np.arange(5, dtype=np.float32))
        assert (tmp_path / "old" / "old.pt").is_file()

    def whole(server: Server, request: BaseHTTPRequestHandler) -> bool:
        del request.headers["Range"]
        return False

    data = archive("npz")
    with Server({"model.npz": data}, whole) as server:
        opened = open_checkpoint(f"{server.url}/model.npz", headers_only=True, download_dir=tmp_path / "new")
        assert opened.headers.keys() == tensors().keys()
        assert (tmp_path / "new" / "model.npz").read_bytes() == data
