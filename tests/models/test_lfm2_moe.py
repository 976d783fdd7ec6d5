"""LFM2-MoE shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Lfm2MoeConfig, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.lfm2_moe import Lfm2MoeConfig as OurConfig
from tests.graphs import published
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
TYPES = ["conv", "full_attention", "conv"]
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
CASES: dict[str, PreTrainedConfig] = {
    "dense-layer-tied": Lfm2MoeConfig(
        **SIZES, hidden_size=40, intermediate_size=50, moe_intermediate_size=22, num_hidden_layers=3,
        num_attention_heads=5, num_key_value_heads=1, layer_types=TYPES, num_dense_layers=1, num_experts=12,
        num_experts_per_tok=3, routed_scaling_factor=2.5,
    ),
    "without-bias": Lfm2MoeConfig(
        **SIZES, hidden_size=36, intermediate_size=40, moe_intermediate_size=26, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=3, layer_types=TYPES[:2], num_dense_layers=0, num_experts=5,
        num_experts_per_tok=5, use_expert_bias=False, conv_bias=True, tie_word_embeddings=False,
    ),
    "straight-weights-linear": Lfm2MoeConfig(
        **SIZES, hidden_size=30, intermediate_size=44, moe_intermediate_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, layer_types=TYPES[1:], num_dense_layers=1, num_experts=7,
        num_experts_per_tok=2, norm_topk_prob=False, conv_L_cache=4, rope_parameters=LINEAR,
    ),
}  # fmt: skip


def save_biased(config: PreTrainedConfig, folder: Path, dtype: str = "float32") -> Path:
    """As transformers saves it, with biases of the router."""
    parity.save_checkpoint(config, folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    random = torch.Generator().manual_seed(1)
    for name, values in tensors.items():
        if name.endswith("expert_bias"):
            values.normal_(0, 0.5, generator=random)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(save_biased(CASES[name], folder, dtype), folder)


NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: dict[str, Any] = published.PUBLISHED["lfm2_moe"]["LiquidAI/LFM2-8B-A1B"]


def test_keys_that_are_absent() -> None:
    """They mean what transformers takes them for."""
    given = dict(zip(NEEDED, (151, 64, 4803, 3, 8), strict=True)) | {"layer_types": TYPES}
    whole = json.loads(Lfm2MoeConfig(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)


def test_the_published_config() -> None:
    """8.3 billion parameters, the head among them once; two dense layers."""
    job = open_job("lfm2_moe", "dummy", config=PUBLISHED)
    shapes = {name: tuple(a.size for a in p.axes) for name, p in job.graph.signature().items()}
    assert round(sum(prod(shape) for name, shape in shapes.items() if name != "lm_head.weight") / 1e9, 1) == 8.3
    assert shapes["model.layers.1.mlp.gate_proj.weight"] == (7168, 2048)
    assert shapes["model.layers.2.mlp.experts.gate_proj"] == (32, 1792, 2048)


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("BU121", "layer_types", None),
        ("BU122", "layer_types", TYPES),
        ("BU121", "num_dense_layers", -1),
        ("BU121", "num_experts", 0),
        ("BU124", "num_experts_per_tok", 33),
        ("BU121", "use_expert_bias", None),
        ("BU121", "norm_topk_prob", 1),
        ("BU120", "block_ff_dim", 7168),
        ("BU120", "n_group", 4),
        ("BU122", "conv_dim", 1024),
    ],
)
def test_configs_that_are_refused(code: str, key: str, value: Any) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(PUBLISHED | {key: value})
    errors = [finding for finding in caught.value.findings if finding.severity is Severity.ERROR]
    assert [(finding.code, finding.parameter) for finding in errors] == [(code, key)]


@pytest.mark.parametrize(
    "setting",
    [{"routed_scaling_factor": 1.0}, {"num_experts_per_tok": 2}, {"norm_topk_prob": False}, {"use_expert_bias": False}],
)
def test_every_setting_matters(setting: dict[str, Any], tmp_path: Path) -> None:
    """Parity would not hold if one were overlooked."""
    parity.assert_setting_matters(save_biased(CASES["dense-layer-tied"], tmp_path), **setting)
