"""Qwen3-Next and Qwen3.5-MoE in fp8 with a scale a block: a key head's channels are complete blocks, or cut them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, Qwen3_5MoeTextConfig, Qwen3NextConfig

from bringup.compile.job import open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import check
from tests.models import family, parity
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
