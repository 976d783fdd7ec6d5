"""Downloads: what of a source is fetched, once, and gone on with after a stop."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from bringup.adapters.sources import hub as hub_source
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from bringup.progress import Silent
from bringup.system.lock import locked
from tests import PATIENCE
from tests.adapters.remote.checks import JUNK
from tests.adapters.servers import COMMIT, Server, hub


def downloaded(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.iterdir() if not file.name.endswith(".facts.json"))
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("kind", ["url", "hf", "modelscope"])
def test_a_download(llama: dict[str, bytes], tmp_path: Path, monkeypatch, kind: str) -> None:
    """What a model consists of, and nothing else; a second time nothing is fetched again."""
    with Server(llama) if kind == "url" else hub({**llama, **JUNK}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("MODELSCOPE_DOMAIN", server.url)
        source = server.url if kind == "url" else f"{kind}://org/toy"
        opened = open_checkpoint(source, download_dir=tmp_path / "here")
        found = downloaded(tmp_path / "here")
        assert found == {name: llama[name] for name in found}
        assert {name for name in llama if name.endswith(".safetensors")} < set(found)
        assert all(Path(info.file).parent == tmp_path / "here" for info in opened.headers.values())
        before = server.sent
        open_checkpoint(source, download_dir=tmp_path / "here")
        assert server.sent - before < 0.02 * sum(map(len, llama.values()))


def test_what_makes_a_snapshot_one_of_weights() -> None:
    names = ["a.pt", "a.pth", "pytorch_model.bin", "a.gguf", "model.safetensors", "optimizer.pt", "config.json"]
    assert [name for name in names if hub_source._weights(name)] == names[:5]


def test_torch_files_where_there_are_no_others(tmp_path: Path, monkeypatch) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "model.bin")
    files = {"pytorch_model.bin": (tmp_path / "model.bin").read_bytes(), "config.json": b"{}", **JUNK}
    with hub(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        opened = open_checkpoint("hf://org/toy", headers_only=True)
        assert (opened.format, list(opened.headers)) == ("torch", ["a"])
        assert opened.provenance["revision"] == COMMIT


def test_a_download_goes_on_where_it_stopped(tmp_path: Path, monkeypatch) -> None:
    data = save({"a": np.arange(4 << 20, dtype=np.float32)})
    monkeypatch.setattr("bringup.adapters.sources.remote.download.PIECE", 1 << 20)
    broken = threading.Event()

    def breaks(server: Server, request: BaseHTTPRequestHandler) -> bool:
        if server.sent > len(data) // 2 and not broken.is_set():
            server.send(request, 403, b"")
            return True
        return False

    with Server({"model.safetensors": data}, breaks) as server:
        with pytest.raises(BringupError, match="BU914"):
            open_checkpoint(f"{server.url}/model.safetensors", download_dir=tmp_path)
        assert not (tmp_path / "model.safetensors").exists()
        broken.set()
        opened = open_checkpoint(f"{server.url}/model.safetensors", download_dir=tmp_path)
        assert server.sent < 1.1 * len(data)
        assert (tmp_path / "model.safetensors").read_bytes() == data
        assert [file.name for file in tmp_path.glob(".*")] == [".model.safetensors.facts.json"]
        assert opened.headers["a"].shape == (4 << 20,)


def test_a_download_of_a_file_that_has_changed_begins_anew(tmp_path: Path) -> None:
    old, new = (save({"a": np.full(1000, value, np.float32)}) for value in (1, 2))
    note = json.dumps([len(old), '"old"'])
    (tmp_path / ".model.safetensors.part").write_bytes(old[:2000])
    (tmp_path / ".model.safetensors.part.json").write_text(note)
    with Server({"model.safetensors": new}) as server:
        open_checkpoint(f"{server.url}/model.safetensors", download_dir=tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == new


def test_a_changed_file_of_equal_size_is_fetched_again(tmp_path: Path) -> None:
    old, new = (save({"a": np.full(1000, value, np.float32)}) for value in (1, 2))
    with Server({"model.safetensors": old}) as server:
        for data in (old, new):
            server.files["model.safetensors"] = data
            open_checkpoint(f"{server.url}/model.safetensors", download_dir=tmp_path)
            assert (tmp_path / "model.safetensors").read_bytes() == data
        before = (tmp_path / "model.safetensors").stat().st_mtime_ns
        open_checkpoint(f"{server.url}/model.safetensors", download_dir=tmp_path)
        assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.filterwarnings("ignore:BU013")
def test_two_processes_do_not_fetch_one_file_at_a_time(tmp_path: Path) -> None:
    data = save({"a": np.ones(5000, np.float32)})
    with Server({"model.safetensors": data}) as server:
        url = f"{server.url}/model.safetensors"
        second = threading.Thread(target=open_checkpoint, args=(url,), kwargs={"download_dir": tmp_path})
        with locked(tmp_path / "model.safetensors", Silent()):
            second.start()
            second.join(0.5)
            assert second.is_alive()
            assert not (tmp_path / ".model.safetensors.part").exists()
        second.join(PATIENCE)
    assert (tmp_path / "model.safetensors").read_bytes() == data
