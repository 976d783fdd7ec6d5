"""`lora convert --to ranks`, against numpy's slices of peft: columns, rows, key heads, stages, experts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Bringup
from tests.lora.written import Case, Written, write

ALPHA, RANK, SCALE = 6.0, 4, 1.5
COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
Arrays = dict[str, np.ndarray]
Convert = Callable[..., list[Arrays]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Written:
    words = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear"}
    return write(Case("llama", words), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def convert(bringup: Bringup, llama: Written, tmp_path: Path) -> Convert:
    def run(*words: object) -> list[Arrays]:
        place = ["--checkpoint", llama.base, "--to", "ranks", "-o", tmp_path / "out"]
        result = bringup("lora", "convert", llama.lora, *place, *words)
        assert result.exit_code == 0, result.output
        return [load_file(file) for file in sorted((tmp_path / "out").glob("rank*.safetensors"))]

    return run


def factors(llama: Written, layer: int, module: str) -> tuple[np.ndarray, np.ndarray]:
    """peft's A [D, Hi] and B [Ho, D]; B multiplied by the scale."""
    tensors = load_file(llama.lora / "adapter_model.safetensors")
    block = "self_attn" if module[0] in "qkvo" else "mlp"
    name = f"base_model.model.model.layers.{layer}.{block}.{module}.lora_"
    return tensors[f"{name}A.weight"], tensors[f"{name}B.weight"] * np.float32(SCALE)


def held(rank: Arrays, layer: int, module: str) -> tuple[np.ndarray, np.ndarray]:
    block = "self_attn" if module[0] in "qkvo" else "mlp"
    name = f"model.layers.{layer}.{block}.{module}.weight.lora_"
    return rank[f"{name}A"], rank[f"{name}B"]


def test_columns_divide_b_and_rows_divide_a(convert: Convert, llama: Written) -> None:
    ranks = convert("--tp", 2, "--storage-type", "float32")
    assert [len(rank) for rank in ranks] == [28, 28]
    for number, rank in enumerate(ranks):
        for layer in range(2):
            for module in COLUMNS:
                a, b = factors(llama, layer, module)
                np.testing.assert_array_equal(held(rank, layer, module)[0], a)
                np.testing.assert_array_equal(held(rank, layer, module)[1], np.split(b, 2)[number])
            for module in ROWS:
                a, b = factors(llama, layer, module)
                np.testing.assert_array_equal(held(rank, layer, module)[0], np.split(a, 2, axis=1)[number])
                np.testing.assert_array_equal(held(rank, layer, module)[1], b)


def test_two_ranks_have_each_key_head(convert: Convert, llama: Written) -> None:
    """4 ranks, 2 key heads of 8 channels."""
    for number, rank in enumerate(convert("--tp", 4, "--storage-type", "float32")):
        _, b = factors(llama, 1, "k_proj")
        np.testing.assert_array_equal(held(rank, 1, "k_proj")[1], np.split(b, 2)[number // 2])


def test_stages_have_their_layers(convert: Convert, llama: Written) -> None:
    first, second = convert("--pp", 2, "--storage-type", "float32")
    assert {name.split(".")[2] for name in first} == {"0"}
    assert {name.split(".")[2] for name in second} == {"1"}
    np.testing.assert_array_equal(held(second, 1, "up_proj")[1], factors(llama, 1, "up_proj")[1])


def test_one_rank_and_its_dtype(convert: Convert, llama: Written, tmp_path: Path) -> None:
    (rank,) = convert("--tp", 2, "--rank", 1, "--storage-type", "bfloat16")
    assert {array.dtype for array in rank.values()} == {np.dtype(ml_dtypes.bfloat16)}
    _, b = factors(llama, 0, "q_proj")
    wanted = np.split(b, 2)[1].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(held(rank, 0, "q_proj")[1].view(np.uint16), wanted.view(np.uint16))
    note = json.loads((tmp_path / "out" / "bringup.json").read_text("utf-8"))
    assert (note["mapping"]["tp_size"], note["files"]) == (2, {"rank1.safetensors": {"rank": 1}})


def test_experts_are_divided_with_their_factors(bringup: Bringup, tmp_path: Path) -> None:
    """The sum over all ranks is what the layer adds: each expert is on one rank."""
    words = {"r": RANK, "target_modules": ["v_proj"], "target_parameters": ["experts.down_proj"]}
    written = write(Case("mixtral", words), tmp_path)
    for name, more in (("one", ()), ("two", ("--ep", 2))):
        place = ["--checkpoint", written.base, "--to", "ranks", "--storage-type", "float32", "-o", tmp_path / name]
        result = bringup("lora", "convert", written.lora, *place, *more)
        assert result.exit_code == 0, result.output
    (whole,) = (load_file(file) for file in (tmp_path / "one").glob("rank*"))
    parts = [load_file(file) for file in sorted((tmp_path / "two").glob("rank*"))]
    for side in "AB":
        name = f"model.layers.0.mlp.experts.down_proj.lora_{side}"
        assert whole[name].shape[0] == 4
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "2"], "error[BU023]: --to trtllm is not divided among ranks"),
        (["--to", "peft", "--rank", "0"], "error[BU023]: --to peft is not divided among ranks"),
        (["--to", "ranks", "--format", "numpy"], "error[BU023]: --format numpy applies to --to trtllm"),
        (["--to", "ranks", "--tp", "3"], "error[BU130]"),
        (["--to", "ranks", "--ep", "2"], "error[BU130]: no parameter has an axis `e` to divide among 2 ranks"),
        (["--to", "ranks", "--tp", "2", "--rank", "2"], "error[BU045]: rank 2 is out of range"),
    ],
)
def test_ranks_that_do_not_fit(
    bringup: Bringup, llama: Written, tmp_path: Path, words: list[str], message: str
) -> None:
    place = ["--checkpoint", llama.base, "-o", tmp_path / "out"]
    result = bringup("lora", "convert", llama.lora, *place, *words)
    assert result.exit_code in (1, 2)
    assert message in result.output, result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["ranks", "trtllm"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (60000, "has 90,000, which is out of the range of float16"),
        (3e38, "multiplied by its scale, is out of the range of float32"),
    ],
)
def test_values_out_of_the_range_of_a_dtype(
    bringup: Bringup, llama: Written, tmp_path: Path, to: str, value: float, message: str
) -> None:
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_bytes((llama.lora / "adapter_config.json").read_bytes())
    tensors = load_file(llama.lora / "adapter_model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.lora_B.weight"))
    tensors[name] = np.full_like(tensors[name], value)
    save_file(tensors, lora / "adapter_model.safetensors")
    result = bringup("lora", "convert", lora, "--checkpoint", llama.base, "--to", to, "-o", tmp_path / "out")
    assert "error[BU174]" in result.output
    assert message in result.output, result.output
    assert not (tmp_path / "out").exists()
