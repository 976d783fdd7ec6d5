"""gpt-oss with experts in MXFP4, quantised here: decoded as transformers decodes it, and run as what that gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from bringup.adapters.apply.materialise import materialise
from bringup.compile.check.checker import check, check_job
from bringup.compile.job import open_job
from bringup.diagnostics import Severity
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
CASES = {
    "square": GptOssConfig(
        **SIZES, hidden_size=64, intermediate_size=64, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
        num_local_experts=5, num_experts_per_tok=2, sliding_window=17,
    ),
    "one-block": GptOssConfig(
        **SIZES, hidden_size=32, intermediate_size=160, num_attention_heads=3, num_key_value_heads=1, head_dim=12,
        num_local_experts=67, num_experts_per_tok=1, sliding_window=9,
    ),
}  # fmt: skip
# As in openai/gpt-oss-20b's config.json.
UNQUANTIZED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
WORDS: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": UNQUANTIZED}


def quantised(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks uint8 [..., n / 32, 16] and scales uint8 [..., n / 32] of float32 [..., n], no value above its range."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    exponents = np.ceil(np.log2(np.abs(blocks).max(-1) / 6.0)).astype(np.int32)
    codes = np.ldexp(blocks, -exponents[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).astype(np.uint8)


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    """A checkpoint whose experts are in MXFP4; transformers reads it too, and computes with what it decodes."""
    parity.save_checkpoint(CASES[name], folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name, array in tensors.items() if array.ndim == 3]:
        blocks, scales = quantised(tensors.pop(name).swapaxes(1, 2).astype(np.float32))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": WORDS}), "utf-8")
    return family.Written(folder, folder)


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory) -> Path:
    return write(request.param, tmp_path_factory.mktemp(request.param)).checkpoint


def changed(checkpoint: Path, folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    """The same config beside other tensors."""
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    return folder


def test_every_code_and_scale_is_decoded_as_transformers_does(checkpoint: Path, tmp_path: Path) -> None:
    tensors, random = load_file(checkpoint / "model.safetensors"), np.random.default_rng(0)
    for name, array in tensors.items():
        if name.endswith("_blocks"):
            tensors[name] = random.permutation(np.arange(array.size) % 256).astype(np.uint8).reshape(array.shape)
        if name.endswith("_scales"):  # beyond these float32 has no normal number, or none at all
            tensors[name] = random.integers(3, 252, array.shape).astype(np.uint8)
    job = open_job(checkpoint=str(changed(checkpoint, tmp_path, tensors)))
    arrays = materialise(job.plan, job.checkpoint)
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts."
        both, down = (
            decoded(tensors[f"{experts}{x}_blocks"], tensors[f"{experts}{x}_scales"])
            for x in ("gate_up_proj", "down_proj")
        )
        np.testing.assert_array_equal(arrays[f"{experts}gate_proj"], both[..., 0::2].swapaxes(1, 2))
        np.testing.assert_array_equal(arrays[f"{experts}up_proj"], both[..., 1::2].swapaxes(1, 2))
        np.testing.assert_array_equal(arrays[f"{experts}down_proj"], down.swapaxes(1, 2))


def decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Float32 [e, in, out] by transformers."""
    converted = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    return converted.numpy()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("BU137", {"quantization_config": WORDS | {"quant_method": "fp4"}}),
        ("BU120", {"quantization_config": WORDS | {"bits": 3}}),
        ("BU106", {"quantization_config": WORDS, "hidden_size": 80}),  # no whole blocks of 32
        ("BU106", {"quantization_config": WORDS, "intermediate_size": 80}),
    ],
)
def test_configs_that_are_refused(code: str, words: dict[str, Any]) -> None:
    raw = json.loads(CASES["square"].to_json_string(use_diff=False))
    report = check_job(open_job("gpt_oss", "dummy", config=raw | words))
    assert [finding.code for finding in report.errors] == [code]


def test_missing_scales_are_reported(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    del tensors[name]
    report = check(open_job(checkpoint=str(changed(checkpoint, tmp_path, tensors))).plan)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert [(finding.code, finding.sources) for finding in errors] == [("BU101", (name,))]


def test_dummy_weights(tmp_path: Path) -> None:
    """The layout that the rules alone describe is the published one, and its values are numbers."""
    raw = json.loads(CASES["square"].to_json_string(use_diff=False)) | {"quantization_config": WORDS}
    job = open_job("gpt_oss", "dummy", config=raw)
    written = load_file(write("square", tmp_path).checkpoint / "model.safetensors")
    assert {name: info.shape for name, info in job.checkpoint.headers.items()} == {
        name.removeprefix("model."): array.shape for name, array in written.items()
    }
    assert all(np.isfinite(array).all() for array in materialise(job.plan, job.checkpoint).values())
