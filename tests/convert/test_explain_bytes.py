"""`bringup explain` with byte ranges and ranks: the ranges hold what it says, read from the file by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Bringup
from tests.convert import by_hand, models
from tests.convert.test_convert import save

RANGE = re.compile(r"model\.safetensors\[(\d+):(\d+)\]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", *models.llama())


def read(folder: Path, text: str) -> np.ndarray:
    data = (folder / "model.safetensors").read_bytes()
    parts = [data[int(start) : int(stop)] for start, stop in RANGE.findall(text)]
    return np.frombuffer(b"".join(parts), np.float32)


def row(output: str, label: str) -> str:
    return next(line for line in output.splitlines() if line.strip().startswith(label))


def test_a_parameter(bringup: Bringup, folder: Path) -> None:
    tensors, _ = models.llama()
    name = "model.layers.1.self_attn.k_proj.weight"
    output = bringup("explain", name, "--checkpoint", folder, "--tp", 4).stdout
    np.testing.assert_array_equal(read(folder, row(output, "bytes")), tensors[name].reshape(-1))
    for rank in range(4):
        line = row(output, f"rank {rank}")
        assert "[4, 16]" in line
        np.testing.assert_array_equal(read(folder, line), by_hand.key_heads(tensors[name], rank, 4, 2).reshape(-1))


def test_one_rank_of_a_stage_and_a_bias(bringup: Bringup, folder: Path) -> None:
    words = ["--checkpoint", folder, "--tp", 2, "--pp", 2, "--rank", 1]
    output = bringup("explain", "model.layers.1.mlp.down_proj.bias", *words).stdout
    assert row(output, "rank 1").endswith("is in another pipeline stage")
    output = bringup("explain", "model.layers.0.mlp.down_proj.bias", *words).stdout
    assert "zeros: the first rank of the sum adds it" in row(output, "rank 1")
    assert "rank 0" not in output


def test_a_tensor(bringup: Bringup, tmp_path: Path) -> None:
    """One expert, which one rank reads; and one of a fused tensor's readers."""
    tensors, config = models.mixtral()
    folder = save(tmp_path / "mixtral", tensors, config)
    name = "model.layers.0.block_sparse_moe.experts.3.w1.weight"
    output = bringup("explain", name, "--checkpoint", folder, "--ep", 2).stdout
    np.testing.assert_array_equal(read(folder, row(output, "bytes")), tensors[name].reshape(-1))
    assert row(output, "rank 0").endswith("reads nothing of it")
    assert row(output, "rank 1").endswith("for model.layers.0.mlp.experts.gate_proj")
    np.testing.assert_array_equal(read(folder, row(output, "rank 1")), tensors[name].reshape(-1))
