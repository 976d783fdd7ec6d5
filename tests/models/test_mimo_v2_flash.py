"""MiMo-V2-Flash shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import MiMoV2FlashConfig, PreTrainedConfig

from bringup.compile.check.checker import check
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.mimo_v2_flash import MiMoV2FlashConfig as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 3, "max_position_embeddings": 1024}
ROPES: dict[str, Any] = {
    "full_attention": {"rope_type": "linear", "rope_theta": 3e4, "factor": 2.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e3, "partial_rotary_factor": 1.0},
}
CASES: dict[str, PreTrainedConfig] = {
    "published-pattern": MiMoV2FlashConfig(
        **SIZES, hidden_size=30, intermediate_size=22, moe_intermediate_size=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=18, v_head_dim=10, n_routed_experts=19, num_experts_per_tok=3,
        sliding_window_size=16,
    ),
    "groups-biases": MiMoV2FlashConfig(
        **SIZES | {"num_hidden_layers": 4}, hidden_size=42, intermediate_size=26, moe_intermediate_size=14,
        num_attention_heads=6, num_key_value_heads=3, head_dim=12, v_head_dim=8, attention_bias=True,
        n_routed_experts=12, num_experts_per_tok=5, n_group=4, topk_group=2, norm_topk_prob=False,
        routed_scaling_factor=2.5, sliding_window=33, attention_value_scale=None, rope_parameters=ROPES,
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["sparse", "dense", "sparse", "dense"],
    ),
    "wide-values-tied": MiMoV2FlashConfig(
        **SIZES | {"num_hidden_layers": 2}, hidden_size=36, intermediate_size=34, moe_intermediate_size=20,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, v_head_dim=14, n_routed_experts=4,
        num_experts_per_tok=4, sliding_window=200, tie_word_embeddings=True, attention_value_scale=1.3,
        rope_parameters=ROPES, layer_types=["sliding_attention"] * 2, mlp_layer_types=["dense"] * 2,
    ),
}  # fmt: skip
SAID: dict[str, Any] = {"vocab_size": 131, "hidden_size": 64, "num_attention_heads": 16, "num_hidden_layers": 12}
# The keys of XiaomiMiMo/MiMo-V2-Flash that transformers does not read, for 12 layers.
PUBLISHED: dict[str, Any] = {
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0],
    "moe_layer_freq": [0, *[1] * 11],
    "swa_num_attention_heads": 16,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "swa_rope_theta": 10000,
    "rope_theta": 5000000,
    "partial_rotary_factor": 0.334,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "layernorm_epsilon": 1e-5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
UNREAD: dict[str, Any] = {"n_shared_experts": None, "attention_chunk_size": 128, "hybrid_block_size": None}
WINDOW = {"sliding_window": 128, "sliding_window_size": 128, "routed_scaling_factor": None}


def _theirs(**words: Any) -> dict[str, Any]:
    return json.loads(MiMoV2FlashConfig(**words).to_json_string(use_diff=False))


@pytest.mark.parametrize("words", [{}, WINDOW, {"sliding_window": 33}, {"rope_parameters": ROPES}])
def test_keys_that_are_absent(words: dict[str, Any]) -> None:
    """transformers' own defaults; a window includes the query's own token, which `sliding_window_size` does not."""
    assert OurConfig.from_hf(SAID | words) == OurConfig.from_hf(_theirs(**SAID | words))


def test_keys_of_the_published_config() -> None:
    """They state what transformers computes without them; other values are rejected."""
    assert OurConfig.from_hf(SAID | PUBLISHED | UNREAD | WINDOW) == OurConfig.from_hf(SAID | WINDOW)
    for key, value in PUBLISHED.items():
        other = (
            value[::-1] if isinstance(value, list) else "other" if isinstance(value, str) else not value or value / 2
        )
        with pytest.raises(BringupError, match=f"BU122.*{key}"):
            OurConfig.from_hf(SAID | PUBLISHED | {key: other})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("num_key_value_heads", {"num_key_value_heads": 16}),  # layers with a window have 32
        ("n_group", {"n_group": 5}),
        ("mlp_layer_types", {"mlp_layer_types": ["dense"]}),
        ("layer_types", {"layer_types": ["full_attention"] * 11}),
        ("sliding_window_size", {"sliding_window_size": -1}),
    ],
)
def test_sizes_that_are_refused(key: str, words: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(SAID | words)
    assert [finding.parameter for finding in caught.value.findings] == [key]


def test_two_windows() -> None:
    """transformers computes with the size; another window of the published config is a warning."""
    job = OurConfig.from_hf(SAID | {"sliding_window": 64, "sliding_window_size": 128})
    assert {window for window in job.windows if window} == {129}


def test_the_layers_of_drafts_are_dropped(tmp_path: Path) -> None:
    """Published checkpoints have three layers that predict further tokens, which transformers does not read either."""
    parity.save_checkpoint(CASES["published-pattern"], tmp_path)
    file = tmp_path / "model.safetensors"
    names = {f"model.mtp.layers.{n}.{x}" for n in range(3) for x in ("eh_proj.weight", "self_attn.q_proj.weight")}
    save_file(load_file(file) | {name: np.zeros((3, 4), np.float32) for name in names}, file)
    job = open_job(checkpoint=str(tmp_path))
    assert check(job.plan).ok
    assert job.plan.dropped.keys() == names
