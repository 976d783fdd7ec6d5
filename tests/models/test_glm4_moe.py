"""GLM-4.5 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import Glm4MoeConfig, PreTrainedConfig

from bringup.compile.check.checker import check
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.glm4_moe import Glm4MoeConfig as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": Glm4MoeConfig(
        **SIZES, hidden_size=30, intermediate_size=22, moe_intermediate_size=18, num_attention_heads=5,
        num_key_value_heads=1, head_dim=12, attention_bias=True, use_qk_norm=True, n_routed_experts=67,
        num_experts_per_tok=1, routed_scaling_factor=2.5,
    ),
    "groups-tied": Glm4MoeConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=42, intermediate_size=26, moe_intermediate_size=14,
        num_attention_heads=6, num_key_value_heads=3, n_routed_experts=12, num_experts_per_tok=5, n_group=4,
        topk_group=2, n_shared_experts=3, first_k_dense_replace=2, norm_topk_prob=False, tie_word_embeddings=True,
        partial_rotary_factor=0.3,
    ),
    "no-dense-layer-yarn": Glm4MoeConfig(
        **SIZES, hidden_size=36, intermediate_size=34, moe_intermediate_size=20, num_attention_heads=3,
        num_key_value_heads=3, attention_bias=True, n_routed_experts=4, num_experts_per_tok=3,
        first_k_dense_replace=0, rope_parameters=YARN,
    ),
}  # fmt: skip


def test_keys_that_are_absent() -> None:
    """transformers' own defaults, of the rope too."""
    said = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 34, "num_attention_heads": 16}
    raw = said | {"num_hidden_layers": 3}
    theirs = json.loads(Glm4MoeConfig(**raw).to_json_string(use_diff=False))
    assert OurConfig.from_hf(raw) == OurConfig.from_hf(theirs)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("n_group", {"n_group": 5}),
        ("n_group", {"n_group": 12}),
        ("topk_group", {"topk_group": 5}),
        ("num_experts_per_tok", {"num_experts_per_tok": 7}),  # two groups of three have six
    ],
)
def test_routing_that_is_refused(key: str, words: dict[str, int]) -> None:
    raw = json.loads(CASES["groups-tied"].to_json_string(use_diff=False)) | words
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(raw)
    assert [finding.parameter for finding in caught.value.findings] == [key]


def test_the_draft_layer_is_dropped(tmp_path: Path) -> None:
    """Layer 2 of a model of two layers, as published GLM-4.5 has layer 92 of 92; a layer beyond it is nobody's."""
    parity.save_checkpoint(CASES["no-dense-layer-yarn"], tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    draft = {"enorm.weight", "eh_proj.weight", "shared_head.norm.weight", "embed_tokens.weight", "mlp.gate.weight"}
    tensors |= {f"model.layers.2.{name}": np.zeros((3, 4), np.float32) for name in draft}
    save_file(tensors, file)
    job = open_job(checkpoint=str(tmp_path))
    assert check(job.plan).ok
    assert job.plan.dropped.keys() == {f"model.layers.2.{name}" for name in draft}
    save_file(tensors | {"model.layers.3.enorm.weight": np.zeros(3, np.float32)}, file)
    report = check(open_job(checkpoint=str(tmp_path)).plan)
    assert [(finding.code, finding.sources) for finding in report.findings] == [
        ("BU105", ("model.layers.3.enorm.weight",))
    ]
