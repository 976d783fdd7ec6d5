"""Qwen3.5-MoE shapes: cases of test_families.py, its config.json, and its tensors in both forms of experts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, Qwen3_5MoeConfig, Qwen3_5MoeTextConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import shape_of
from bringup.graphs.qwen3_5_moe import Qwen3_5MoeConfig as OurConfig
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
# As in test_qwen3_next.py: the epsilons bound how much a DeltaNet enlarges the rounding of float32.
CASES: dict[str, PreTrainedConfig] = {
    "more-value-heads": Qwen3_5MoeTextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=30, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
        linear_key_head_dim=12, linear_value_head_dim=10, linear_num_key_heads=2, linear_num_value_heads=6,
        moe_intermediate_size=22, shared_expert_intermediate_size=36, num_experts=5, num_experts_per_tok=3,
        rms_norm_eps=1e-3, layer_types=["linear_attention", "full_attention"],
    ),
    "more-experts-than-tokens-tied": Qwen3_5MoeTextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
        linear_key_head_dim=8, linear_value_head_dim=16, linear_num_key_heads=3, linear_num_value_heads=3,
        linear_conv_kernel_dim=3, moe_intermediate_size=26, shared_expert_intermediate_size=20, num_experts=67,
        num_experts_per_tok=2, rms_norm_eps=2e-3, attention_bias=True, tie_word_embeddings=True,
        full_attention_interval=2, hidden_act="gelu",
    ),
    "every-expert-linear-rope": Qwen3_5MoeTextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        linear_key_head_dim=16, linear_value_head_dim=8, linear_num_key_heads=1, linear_num_value_heads=4,
        moe_intermediate_size=34, shared_expert_intermediate_size=34, num_experts=4, num_experts_per_tok=4,
        rms_norm_eps=1e-3, rope_parameters=LINEAR, layer_types=["linear_attention", "full_attention"],
    ),
}  # fmt: skip

# transformers' defaults.
GIVEN: dict[str, Any] = {
    "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
}  # fmt: skip


def test_experts_in_one_tensor_are_those_in_many(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES["more-value-heads"], tmp_path / "each")
    tokens, theirs = family.reference(folder)
    tensors = load_file(folder / "model.safetensors")
    fused: dict[str, torch.Tensor] = {}
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([tensors.pop(f"{at}{e}.{x}_proj.weight") for e in range(5)]) for x in ("gate", "up", "down")
        )
        fused |= {at + "gate_up_proj": torch.cat([gate, up], 1), at + "down_proj": down.contiguous()}
    assert not [name for name in tensors if ".experts." in name]
    save_file(tensors | fused, folder / "model.safetensors", {"format": "pt"})
    job = open_job(checkpoint=str(folder))
    assert not check(job).findings
    assert parity.distance(family.eager_logits(job, tokens, family.PROMPT), theirs).worst <= family.WORST["torch"]
    again = parity.logits_of(parity.load_reference(folder), tokens)
    assert abs(again[-len(theirs) :] - theirs).max() <= 1e-5 * abs(theirs).max()  # transformers reads both forms


def test_keys_that_are_absent() -> None:
    whole = json.loads(Qwen3_5MoeTextConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN) == OurConfig.from_hf(whole)
    outer = json.loads(Qwen3_5MoeConfig(text_config=GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(outer) == OurConfig.from_hf(GIVEN)


def test_the_parameters_of_the_default_sizes() -> None:
    job = open_job("qwen3_5_moe", "dummy", config=GIVEN)
    shapes = {name: shape_of(declared.axes) for name, declared in job.graph.signature().params.items()}
    assert shapes["model.layers.0.mixer.in_proj_qkv.weight"] == (8192, 2048)
    assert shapes["model.layers.39.mlp.experts.down_proj"] == (256, 2048, 512)
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(34.66, abs=0.01)


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"mlp_only_layers": [1]}, "BU122", "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "BU122", "decoder_sparse_step"),
        ({"norm_topk_prob": False}, "BU122", "norm_topk_prob"),
        ({"num_experts": 4}, "BU124", "num_experts_per_tok"),
        ({"intermediate_size": 64}, "BU120", "intermediate_size"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, key: str) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(GIVEN | keys)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
