"""A folder on test servers, and an environment in which only these are reachable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bringup.adapters.sources.remote import client


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.0)


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> dict[str, bytes]:
    """A Llama of 27 MB in several shards, with what Trainer and other programs leave next to it."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, num_hidden_layers=2, hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="9MB")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert sum(name.endswith(".safetensors") for name in files) >= 3
    return files
