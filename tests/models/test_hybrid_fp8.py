"""Qwen3-Next and Qwen3.5-MoE in fp8 with a scale a block: a key head's channels are complete blocks, or cut them.

Granite 4 in fp8 with a scale a row, as llm-compressor saves its experts: one tensor for all, or a module for each.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, Qwen3_5MoeTextConfig, Qwen3NextConfig

from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import check
from bringup.graphs.core.options import GraphOptions
from tests.models import family, parity
from tests.models.test_granitemoehybrid import CASES as GRANITE
from tests.quantised import fp8_checkpoints

BLOCK = 16
SIZES: dict[str, Any] = dict(
    vocab_size=131, max_position_embeddings=1024, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=32,
    shared_expert_intermediate_size=32, num_experts=3, num_experts_per_tok=2,
    layer_types=["linear_attention", "full_attention"], rms_norm_eps=1e-3,
)  # fmt: skip
COMPLETE, CUT = (
    dict(linear_key_head_dim=16, linear_value_head_dim=32),
    dict(linear_key_head_dim=12, linear_value_head_dim=10),
)
CASES: dict[str, PreTrainedConfig] = {
    "qwen3_next-complete": Qwen3NextConfig(**SIZES, **COMPLETE, intermediate_size=48),
    "qwen3_next-cut": Qwen3NextConfig(**SIZES, **CUT, intermediate_size=48),
    "qwen3_5_moe-complete": Qwen3_5MoeTextConfig(**SIZES, **COMPLETE),
    "qwen3_5_moe-cut": Qwen3_5MoeTextConfig(**SIZES, **CUT),
}
# What Qwen's converter leaves as it is, besides embeddings and the head.
UNCONVERTED = (
    "mlp.gate",
    "mlp.shared_expert_gate",
    "linear_attn.conv1d",
    *(f"linear_attn.in_proj_{x}" for x in ("ba", "b", "a")),
)
EXPERTS = {f"model.layers.0.mlp.experts.{x}_proj" for x in ("gate", "up", "down")}  # Granite 4's


@pytest.fixture(scope="module", params=CASES)
def folders(request, tmp_path_factory) -> tuple[Path, Path]:
    """The checkpoint in fp8, and one of the values that it stands for."""
    fp8 = fp8_checkpoints.write(CASES[request.param], tmp_path_factory.mktemp("fp8"), BLOCK, UNCONVERTED)
    plain = parity.save_checkpoint(CASES[request.param], tmp_path_factory.mktemp("plain"))
    stored, tensors = load_file(fp8 / "model.safetensors"), load_file(plain / "model.safetensors")
    for name, codes in stored.items():
        if codes.dtype == torch.float8_e4m3fn:
            scales = torch.kron(stored[f"{name}_scale_inv"], torch.ones(BLOCK, BLOCK))
            tensors[name] = codes.float() * scales[: codes.shape[0], : codes.shape[1]]
    at = "model.layers.0.linear_attn.in_proj_qkv"
    assert [array.dtype for name, array in stored.items() if name in (f"{at}.weight", f"{at}z.weight")] == [
        torch.float8_e4m3fn
    ]
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return fp8, plain


def test_logits_of_both_forms(folders: tuple[Path, Path]) -> None:
    """Dequantised and packed: the logits of the values that codes and scales stand for."""
    fp8, plain = folders
    job = open_job(checkpoint=str(fp8))
    assert not check(job).findings
    packed = pack_job(job)
    assert not packed.floats
    assert {f"model.layers.0.mixer.in_proj_{x}.weight" for x in ("qkv", "z")} < {*packed.names}
    tokens, wanted = family.reference(plain)
    for each in (job, packed.job):
        ours = family.eager_logits(each, tokens, family.PROMPT)
        assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()


def test_stacked_experts_with_scales(tmp_path: Path) -> None:
    """Stored in float8 or not, whatever the config states of linear layers; plain experts can be quantised."""
    plain, fp8 = (parity.save_checkpoint(GRANITE["a-group-each-head"], tmp_path / name) for name in ("plain", "fp8"))
    tensors = load_file(plain / "model.safetensors")
    stored, values = dict(tensors), dict(tensors)
    for name in tensors:
        if "put_linear" in name and (".0." in name or "shared" in name):
            scales = tensors[name].abs().amax(-1, keepdim=True) / 448
            stored[name], stored[f"{name}_scale"] = (tensors[name] / scales).to(torch.float8_e4m3fn), scales
            values[name] = stored[name].float() * scales
    for folder, each in ((fp8, stored), (plain, values)):
        save_file(each, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((fp8 / "config.json").read_text("utf-8"))
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    group = {"targets": [r"re:.*put_linear", r"re:.*0.block_sparse_moe.experts"], "weights": weights}
    words = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group}}
    (fp8 / "config.json").write_text(json.dumps(raw | {"quantization_config": words}), "utf-8")
    job = open_job(checkpoint=str(fp8))
    assert check(job).findings == []
    same = _with_a_module_for_each_expert(fp8, tmp_path / "each", stored)
    arrays, others = (materialise(each.plan, each.checkpoint) for each in (job, same))
    assert all(np.array_equal(others[name], array) for name, array in arrays.items())
    packed = pack_job(job)
    assert {*packed.names} >= EXPERTS
    tokens, wanted = family.reference(plain)
    ours = family.eager_logits(packed.job, tokens, family.PROMPT)
    assert abs(ours - wanted).max() <= family.WORST["torch"] * abs(wanted).max()
    int8 = open_job(checkpoint=str(plain), options=GraphOptions(quantize="int8"))
    assert {*pack_job(int8).names} >= EXPERTS


def _with_a_module_for_each_expert(folder: Path, other: Path, stored: dict[str, torch.Tensor]) -> Job:
    """The checkpoint in that form. Of modules that no rule names, the names are wrong: the config lists them."""
    same = {name: tensor for name, tensor in stored.items() if "block_sparse_moe" not in name or "router" in name}
    tensors, unnamed = dict(same), dict(same)
    for name in stored.keys() - same.keys():
        module, _, part = name.rpartition(".")
        moe, _, kind = module.rpartition(".")
        names = ("gate", "up") if kind == "input_linear" else ("down",)
        for e, matrix in enumerate(stored[name]):
            unnamed[f"{module}.experts.{e}.{part}"] = matrix.contiguous()
            for x, rows in zip(names, matrix.chunk(len(names)), strict=True):
                tensors[f"{moe}.experts.{e}.{x}_proj.{part}"] = rows.contiguous()
    shutil.copytree(folder, other)
    save_file(unnamed, other / "model.safetensors", {"format": "pt"})
    helps = {finding.code: finding.help for finding in check(open_job(checkpoint=str(other))).findings}
    assert helps.keys() == {"BU101", "BU105", "BU137"}
    assert "correct the names in the rules" in helps["BU137"]
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    job = open_job(checkpoint=str(other))
    assert check(job).findings == []
    return job
