"""Checkpoints behind HTTP: how many bytes a check takes, and tensors that are read by range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from tests.adapters.remote.checks import JUNK, checked, headers_of
from tests.adapters.servers import Server, hub
from tests.cli.headers import write_gguf


def test_a_check_of_a_folder_reads_its_headers(llama: dict[str, bytes]) -> None:
    with Server({f"models/llama/{name}": data for name, data in llama.items()}) as server:
        checked(f"{server.url}/models/llama")
        total = sum(map(len, llama.values()))
        assert server.sent < 0.02 * total + headers_of(llama)
        before = server.sent
        checked(f"{server.url}/models/llama/model.safetensors.index.json")
        assert server.sent - before < 0.02 * total + headers_of(llama)


@pytest.mark.parametrize("source", ["hf://org/toy", "modelscope://org/toy", "hf://org/toy@main"])
def test_a_check_of_a_repository_reads_its_headers(llama: dict[str, bytes], monkeypatch, source: str) -> None:
    with hub({**llama, **JUNK}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("MODELSCOPE_DOMAIN", server.url)
        checked(source)
        assert server.sent < 0.02 * sum(map(len, llama.values())) + headers_of(llama)
        assert not [path for path in server.requests if any(name in path for name in JUNK)]


def test_tensors_by_range(llama: dict[str, bytes], tmp_path: Path) -> None:
    with Server(llama) as server:
        opened = open_checkpoint(server.url, headers_only=True)
        for name, data in llama.items():
            if name.endswith(".safetensors"):
                (tmp_path / name).write_bytes(data)
                for tensor, array in load_file(tmp_path / name).items():
                    assert np.array_equal(opened.read(opened.headers[tensor]), array)


def test_gguf(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "tiny.gguf").read_bytes() + bytes(4 << 20)
    with Server({"tiny.gguf": data}) as server:
        opened = open_checkpoint(f"{server.url}/tiny.gguf", headers_only=True)
        here = open_checkpoint(tmp_path / "tiny.gguf")
        assert opened.format == "gguf"
        assert opened.headers.keys() == here.headers.keys()
        assert dict(opened.config) == dict(here.config)
        assert server.sent < 1 << 20
        for name, info in opened.headers.items():
            assert np.array_equal(opened.read(info), here.read(here.headers[name]))


def test_a_gguf_file_by_pattern(tmp_path: Path, monkeypatch) -> None:
    data = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    with hub({"toy-Q4_K_M.gguf": data, "toy-Q8_0.gguf": data}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert open_checkpoint("hf://org/toy/*Q4*.gguf", headers_only=True).format == "gguf"
        with pytest.raises(BringupError, match="BU218"):
            open_checkpoint("hf://org/toy/*.gguf", headers_only=True)


def test_a_name_with_a_space(tmp_path: Path) -> None:
    with Server({"my model/the weights.safetensors": save({"a": np.ones(3, np.float32)})}) as server:
        source = f"{server.url}/my%20model/the%20weights.safetensors"
        assert list(open_checkpoint(source, headers_only=True).headers) == ["a"]
        assert list(open_checkpoint(source, download_dir=tmp_path / "x").headers) == ["a"]
        assert [file.name for file in (tmp_path / "x").glob("[!.]*")] == ["the weights.safetensors"]
