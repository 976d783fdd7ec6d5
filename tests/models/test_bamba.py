"""Bamba shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from transformers import BambaConfig, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.bamba import BambaConfig as OurConfig
from bringup.graphs.core.axes import shape_of
from tests.graphs import published

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.25}
CASES: dict[str, PreTrainedConfig] = {
    "groups-biases-tied": BambaConfig(
        **SIZES, num_hidden_layers=3, hidden_size=40, intermediate_size=50, num_attention_heads=5,
        num_key_value_heads=1, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_state=12, mamba_n_groups=2,
        mamba_d_conv=3, attention_bias=True, mlp_bias=True, mamba_proj_bias=True, tie_word_embeddings=True,
    ),
    "more-attention-linear-rope": BambaConfig(
        **SIZES, num_hidden_layers=3, hidden_size=36, intermediate_size=44, num_attention_heads=3,
        num_key_value_heads=3, attn_layer_indices=[0, 2], mamba_n_heads=9, mamba_d_state=10, mamba_conv_bias=False,
        rope_parameters=LINEAR, hidden_act="gelu",
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 8, 16), strict=True))
PUBLISHED: dict[str, Any] = published.PUBLISHED["bamba"]["ibm-ai-platform/Bamba-9B"]


def test_the_published_sizes() -> None:
    """9.8 billion parameters; half of a head's channels rotate."""
    job = open_job("bamba", "dummy", config=PUBLISHED)
    shapes = {name: shape_of(declared.axes) for name, declared in job.graph.signature().params.items()}
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(9.8, abs=0.05)
    assert shapes["model.layers.0.mixer.in_proj_xbc.weight"] == (8192 + 2 * 128, 4096)
    assert shapes["model.layers.9.self_attn.k_proj.weight"] == (1024, 4096)
    ours = OurConfig.from_hf(PUBLISHED)
    assert [index for index, recurrent in enumerate(ours.recurrent) if not recurrent] == [9, 18, 27]
    assert ours.rope.channels(ours.head_dim) == 64


def test_keys_that_are_absent() -> None:
    whole = json.loads(BambaConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN) == OurConfig.from_hf(whole)
    assert OurConfig.from_hf(GIVEN).recurrent == (True,) * 8


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"attn_layer_indices": [9, 32]}, "BU121", "layers are 0 to 31"),
        ({"attn_layer_indices": [-1]}, "BU121", "layers are 0 to 31"),
        ({"partial_rotary_factor": 0.25}, "BU122", "partial_rotary_factor"),
        ({"attn_rotary_emb": 128}, "BU122", "attn_rotary_emb"),
        ({"mamba_expand": 3}, "BU121", "are not `mamba_expand`"),
        ({"time_step_limit": [0.001, 0.1]}, "BU122", "time_step_limit"),
        ({"num_key_value_heads": 5}, "BU121", "cannot share"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(BringupError, match=f"{code}.*{message}"):
        OurConfig.from_hf(PUBLISHED | keys)
