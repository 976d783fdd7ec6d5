"""What a rank's conversion reads of a quantised checkpoint: the parts that it computes its arrays from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import LlamaConfig, MixtralConfig

from bringup.adapters.apply import byte_runs
from bringup.adapters.checkpoints import arrays
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.compile.convert.adapt import adapt
from bringup.compile.job import open_job
from tests.cli.conftest import Bringup, bringup
from tests.quantised import checkpoints
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {"llama": LlamaConfig(**SIZES), "mixtral": MixtralConfig(**SIZES, num_local_experts=2)}
# Codes in the order of rows. Those of bitsandbytes are read as pairs, and AWQ's words alternate rows.
__all__ = ["bringup"]  # a fixture
BY_ROWS = ("fp8-tensor", "fbgemm", "ct-int8-zeros", "ct-fp8-blocks", "ct-int4", "modelopt-nvfp4")
OTHERS = ("nf4 nested", "awq", "gptq 3", "gptq symmetric by activations", "ct-int4-zeros")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of the weights. Every run is one, and memory that nothing was read into has no zeros."""
    sizes, preadv, aligned = list[int](), os.preadv, arrays.aligned

    def counting(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(preadv(descriptor, buffers, offset))
        return sizes[-1]

    def filled(shape: tuple[int, ...], dtype: str, **options: Any) -> np.ndarray:
        found = aligned(shape, dtype, **options)
        found.reshape(-1).view(np.uint8)[...] = 0xA5
        return found

    monkeypatch.setattr(byte_runs, "SHORT", 1)
    monkeypatch.setattr(os, "preadv", counting)
    monkeypatch.setattr(arrays, "aligned", filled)
    return sizes


def written(model: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setitem(checkpoints.CASES, f"{model} of ranks", MODELS[model])
    return checkpoints.write(f"{model} of ranks", {**FORMATS, **INT4}[name], folder)


@pytest.mark.parametrize(
    ("model", "name"),
    [*(("llama", name) for name in (*BY_ROWS, *OTHERS)), ("mixtral", "fp8-tensor"), ("mixtral", "awq")],
)
def test_each_rank_has_its_values(
    model: str, name: str, bringup: Bringup, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, exact = written(model, name, tmp_path, monkeypatch)
    shown = json.loads(bringup("check", "--checkpoint", folder, "--tp", 2, "--format", "json").stdout)
    for rank in range(2):
        counted.clear()
        out = tmp_path / f"out{rank}"
        result = bringup("convert", "--checkpoint", folder, "--tp", 2, "--rank", rank, "-o", out)
        assert result.exit_code == 0, result.output
        assert sum(counted) == shown["read_bytes_per_rank"][rank]
        ours, wanted = (
            load_file(out / f"rank{rank}.safetensors"),
            adapt(open_job(checkpoint=str(exact)), tp=2, rank=rank),
        )
        assert ours.keys() == wanted.keys()
        for parameter, array in wanted.items():
            np.testing.assert_array_equal(ours[parameter], array, parameter)


@pytest.mark.parametrize("name", BY_ROWS)
def test_half_of_the_bytes(name: str, bringup: Bringup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks, each reads half of the matrices, at most the whole of every scale, and all norms."""
    monkeypatch.setattr(byte_runs, "SHORT", 1)
    folder, _ = written("llama", name, tmp_path, monkeypatch)
    shown = json.loads(bringup("check", "--checkpoint", folder, "--tp", 2, "--format", "json").stdout)
    headers = read_header(folder / "model.safetensors")
    codes = {key for key in headers if key.endswith((".weight", "_packed")) and "norm" not in key}
    half = sum(headers[key].nbytes for key in codes) // 2
    rest = sum(info.nbytes for key, info in headers.items() if key not in codes)
    for read in shown["read_bytes_per_rank"]:
        assert half < read <= half + rest
