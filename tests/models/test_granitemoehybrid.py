"""Granite 4 shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GraniteMoeHybridConfig, PreTrainedConfig

from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import shape_of
from bringup.graphs.granitemoehybrid import GraniteMoeHybridConfig as OurConfig
from tests.graphs import published
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=3, hidden_size=30, intermediate_size=22, num_attention_heads=5,
        num_key_value_heads=1, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=6, mamba_d_state=12,
        num_local_experts=67, num_experts_per_tok=3, shared_intermediate_size=20, embedding_multiplier=12.0,
        logits_scaling=3.0, residual_multiplier=0.22, attention_multiplier=0.25, position_embedding_type="nope",
        tie_word_embeddings=True,
    ),
    "dense-groups-biases": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, layer_types=["attention", "mamba"], mamba_n_heads=8, mamba_d_head=9, mamba_d_state=10,
        mamba_n_groups=2, mamba_d_conv=3, num_local_experts=0, shared_intermediate_size=44, mamba_proj_bias=True,
        attention_bias=True, position_embedding_type="rope", logits_scaling=0.5, hidden_act="gelu",
    ),
    "attention-only-linear-rope": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=40, intermediate_size=26, num_attention_heads=5,
        num_key_value_heads=5, layer_types=["attention"] * 2, mamba_n_heads=8, num_local_experts=4,
        num_experts_per_tok=4, shared_intermediate_size=18, position_embedding_type="rope", attention_multiplier=0.125,
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    ),
    "a-group-each-head": GraniteMoeHybridConfig(
        **SIZES, num_hidden_layers=2, hidden_size=32, intermediate_size=18, num_attention_heads=4, mamba_n_heads=4,
        layer_types=["linear_attention", "full_attention"],
        mamba_d_state=16, mamba_n_groups=4, mamba_conv_bias=False, mamba_expand=1, num_local_experts=5,
        num_experts_per_tok=2, shared_intermediate_size=24, residual_multiplier=0.5,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 8, 16), strict=True))
SMALL, MICRO = (published.PUBLISHED["granitemoehybrid"][f"ibm-granite/granite-4.0-{x}"] for x in ("h-small", "micro"))


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    signature = open_job("granitemoehybrid", "dummy", config=config).graph.signature()
    return {name: shape_of(declared.axes) for name, declared in signature.params.items() if name != "lm_head.weight"}


def test_the_published_sizes() -> None:
    """32 billion parameters, the head among them once, and 3.4 billion of a model with attention only."""
    shapes = shapes_of(SMALL)
    first = "model.layers.0.mixer."
    assert shapes[first + "in_proj_gate.weight"] == (8192, 4096)
    assert shapes[first + "in_proj_xbc.weight"] == (8192 + 2 * 128, 4096)
    assert shapes[first + "in_proj_dt.weight"] == (128, 4096)
    assert shapes["model.layers.5.mlp.experts.gate_proj"] == (72, 768, 4096)
    assert shapes["model.layers.5.mlp.shared_mlp.up_proj.weight"] == (1536, 4096)
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(32.2, abs=0.1)
    dense = shapes_of(MICRO)
    assert dense["model.layers.39.mlp.gate_proj.weight"] == (8192, 2560)
    assert sum(map(math.prod, dense.values())) / 1e9 == pytest.approx(3.4, abs=0.05)


def test_keys_that_are_absent() -> None:
    whole = json.loads(GraniteMoeHybridConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN | {"mamba_n_heads": 128}) == OurConfig.from_hf(whole)
    ours = OurConfig.from_hf(GIVEN)
    assert (ours.mamba.head_dim, ours.recurrent, ours.with_rope) == (1, (True,) * 8, False)


def test_odd_heads_without_rope() -> None:
    odd = GIVEN | {"hidden_size": 48, "mamba_n_heads": 48}
    assert OurConfig.read(odd)[1] == []
    (finding,) = OurConfig.read(odd | {"position_embedding_type": "rope"})[1]
    assert (finding.code, finding.parameter) == ("BU121", "head_dim")


@pytest.mark.parametrize("high", [float("inf"), {"__float__": "Infinity"}])
def test_dt_without_a_limit(high: Any) -> None:
    assert OurConfig.read(SMALL | {"time_step_limit": [0.0, high]})[1] == []


def test_null_is_what_transformers_computes_with() -> None:
    """The scale of torch's attention, and no biases; without experts, no token is routed."""
    nulls = dict.fromkeys(("attention_multiplier", "mamba_conv_bias", "mamba_proj_bias", "num_experts_per_tok"))
    stated = {"attention_multiplier": 0.125, "mamba_conv_bias": False, "mamba_proj_bias": False}
    dense = MICRO | {"hidden_size": 64 * MICRO["num_attention_heads"], "mamba_d_head": "auto"}
    assert OurConfig.from_hf(dense | nulls) == OurConfig.from_hf(dense | stated | {"num_experts_per_tok": 0})
    with pytest.raises(BringupError, match=r"BU121.*num_experts_per_tok"):
        OurConfig.from_hf(SMALL | nulls)


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"mamba_d_head": 32}, "BU121", "128 heads of 32 channels are not `mamba_expand` · `hidden_size` = 8192"),
        ({"mamba_n_groups": 3}, "BU121", "128 heads do not make 3 groups of the same size"),
        ({"mamba_n_heads": 0}, "BU121", "mamba_n_heads"),
        ({"layer_types": ["mamba"] * 39}, "BU122", "40 of mamba or attention"),
        ({"layer_types": ["conv"] * 40}, "BU122", "40 of mamba or attention"),
        ({"time_step_limit": [0.0, 1.0]}, "BU122", "time_step_limit"),
        ({"time_step_limit": None}, "BU122", "time_step_limit"),
        ({"position_embedding_type": "alibi"}, "BU122", "position_embedding_type"),
        ({"normalization_function": "layernorm"}, "BU122", "normalization_function"),
        ({"num_experts_per_tok": 73}, "BU124", "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "BU121", "num_experts_per_tok"),
        ({"num_local_experts": None}, "BU121", "num_local_experts"),
        ({"logits_scaling": 0}, "BU121", "logits_scaling"),
        ({"residual_multiplier": None}, "BU121", "residual_multiplier"),
        ({"mamba_chunk_size": "all"}, "BU121", "mamba_chunk_size"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(BringupError, match=f"{code}.*{message}"):
        OurConfig.from_hf(SMALL | keys)


@pytest.mark.parametrize(
    "setting",
    [
        {"embedding_multiplier": 1.0},
        {"logits_scaling": 1.0},
        {"residual_multiplier": 1.0},
        {"attention_multiplier": 1.0},
        {"position_embedding_type": "rope"},
        {"num_experts_per_tok": 2},
    ],
)
def test_every_setting_matters(setting: dict[str, Any], tmp_path: Path) -> None:
    """Parity would not hold if one were overlooked."""
    folder = parity.save_checkpoint(CASES["more-experts-than-tokens"], tmp_path)
    parity.assert_setting_matters(folder, **setting)


def test_fused_projections_are_the_published_tensor(tmp_path: Path) -> None:
    """Of gate, x, b, c and dt in this order, which the checkpoint has in one tensor too."""
    job = open_job(checkpoint=str(parity.save_checkpoint(CASES["dense-groups-biases"], tmp_path)))
    arrays = materialise(lay_out(job.plan, fused()), job.checkpoint)
    for leaf in ("weight", "bias"):
        published_tensor = job.checkpoint.read(job.checkpoint.headers[f"model.layers.1.mamba.in_proj.{leaf}"])
        assert np.array_equal(arrays[f"model.layers.1.mixer.in_proj.{leaf}"], published_tensor)
    assert not any(".in_proj_" in name for name in arrays)
