"""Experts in GGUF: sizes that the metadata of a file lacks, and outer dimensions of 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import Qwen2MoeConfig

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from bringup.compile.report.explain import explain
from bringup.spec import Shape, TensorInfo
from tests.adapters import gguf_families, llama_cpp, test_dialects
from tests.adapters.written import raises
from tests.models import parity

SIZES = ("expert_count", "expert_feed_forward_length", "expert_shared_feed_forward_length")
Written = Callable[..., tuple[Path, Path]]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Written:
    """Writes a case, and the same file without some keys of its architecture."""
    header = gguf.GGUFWriter.write_header_to_file

    def write(name: str, *keys: str) -> tuple[Path, Path]:
        def fewer(writer: gguf.GGUFWriter) -> None:
            for key in keys:
                writer.kv_data[0].pop(f"{writer.arch}.{key}", None)
            header(writer)

        monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", fewer)
        place = tmp_path / f"{name} {len(keys)}"
        place.mkdir()
        if name in gguf_families.CASES:
            return gguf_families.write(gguf_families.CASES[name], place)
        return test_dialects.gguf_of(name, place)

    return write


@pytest.mark.parametrize("name", ["qwen2-moe", "qwen3-moe", "gpt-oss", "glm4-moe", "deepseek-v2"])
def test_sizes_that_tensors_have(name: str, without: Written) -> None:
    """As in files of Qwen1.5-MoE that were converted before llama.cpp had keys for the widths."""
    whole = open_checkpoint(str(without(name)[1])).config
    folder, file = without(name, *SIZES)
    assert open_checkpoint(str(file)).config == whole
    llama_cpp.assert_same_logits(folder, file)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen2-moe", "qwen2moe.expert_used_count"),
        ("qwen3-moe", "qwen3moe.expert_used_count"),
        ("mixtral", "llama.expert_used_count"),
        ("gpt-oss", "gpt-oss.expert_used_count"),
        ("glm4-moe", "glm4moe.expert_shared_count"),
    ],
)
def test_a_number_that_no_tensor_has_is_an_error(name: str, key: str, without: Written) -> None:
    """The default of the family's config.json would be another number."""
    with raises("BU224", f"`{key}`"):
        open_checkpoint(str(without(name, key.partition(".")[2])[1]))


# One expert: its matrices and its row of the router have an outer dimension of 1, as the gate of the shared expert has.
ONE = Qwen2MoeConfig(
    **test_dialects.SIZES, num_experts=1, num_experts_per_tok=1, moe_intermediate_size=48,
    shared_expert_intermediate_size=96,
)  # fmt: skip


@pytest.fixture
def write_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bool], tuple[Path, Path]]:
    """Writes `ONE` as convert_hf_to_gguf.py does, or without outer dimensions of 1, as llama-quantize does."""
    add = gguf.GGUFWriter.add_tensor

    def add_fewer(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, **options: Any) -> None:
        while tensor.shape[0] == 1:
            tensor = tensor[0]
        add(writer, name, tensor, **options)

    def write(ones: bool) -> tuple[Path, Path]:
        folder = parity.save_checkpoint(ONE, tmp_path / "transformers")
        if not ones:
            monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_fewer)
        out = tmp_path / "m.gguf"
        return folder, llama_cpp.convert(folder, out, gguf.MODEL_ARCH.QWEN2MOE, words=test_dialects.words)

    return write


@pytest.mark.parametrize("ones", [True, False])
def test_outer_dimensions_of_1_may_be_omitted(ones: bool, write_one: Callable[[bool], tuple[Path, Path]]) -> None:
    folder, file = write_one(ones)
    job = llama_cpp.assert_same_logits(folder, file)
    shapes = [job.checkpoint.headers[f"blk.1.ffn_{x}.weight"].shape for x in ("gate_inp_shexp", "gate_inp", "up_exps")]
    assert shapes == ([(1, 48), (1, 48), (1, 48, 48)] if ones else [(48,), (48,), (48, 48)])
    (explained,) = explain(job, "model.layers.1.mlp.shared_expert_gate.weight")
    assert dict(explained.rows)["axes"] == "blk.1.ffn_gate_inp_shexp.weight: out in → out:s in:m"


@pytest.mark.parametrize(
    ("stored", "rank", "shape"),
    [((1, 1, 4), 1, (4,)), ((2, 1, 4), 2, (2, 1, 4)), ((1,), 3, (1, 1, 1)), ((2, 4), 2, (2, 4)), ((1, 4), 0, (1, 4))],
)
def test_the_shape_in_another_rank(stored: Shape, rank: int, shape: Shape) -> None:
    info = TensorInfo("w", "float32", stored, fixed_rank=False)
    assert (info.shape_in(rank), info._replace(fixed_rank=True).shape_in(rank)) == (shape, stored)


def with_two_gates(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    return {
        n: np.repeat(array, 2, 0) if n.endswith("shared_expert_gate.weight") else array for n, array in tensors.items()
    }


def test_an_outer_dimension_of_2_is_an_error(tmp_path: Path) -> None:
    _, file = test_dialects.gguf_of("qwen2-moe", tmp_path, tensors=with_two_gates)
    (finding,) = check_job(open_job(None, str(file))).findings
    assert (finding.code, finding.actual) == ("BU102", "[2, 48]")


def test_safetensors_have_every_dimension(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(ONE, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(test_dialects.without_ones(tensors, {}), folder / "model.safetensors")
    findings = check_job(open_job(None, str(folder))).findings
    assert {(finding.code, finding.actual) for finding in findings} == {("BU102", "[48]")}
