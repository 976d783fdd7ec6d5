"""Qwen3-MoE shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen3MoeConfig

from bringup.diagnostics import BringupError
from bringup.graphs.qwen3_moe import Qwen3MoeConfig as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": Qwen3MoeConfig(
        **SIZES, hidden_size=30, intermediate_size=44, moe_intermediate_size=22, num_attention_heads=3,
        num_key_value_heads=1, num_experts=67, num_experts_per_tok=2, norm_topk_prob=True,
    ),
    "dense-layers-tied": Qwen3MoeConfig(
        **SIZES | {"num_hidden_layers": 4}, hidden_size=42, intermediate_size=50, moe_intermediate_size=26,
        num_attention_heads=6, num_key_value_heads=2, head_dim=10, num_experts=5, num_experts_per_tok=3,
        mlp_only_layers=[3], decoder_sparse_step=2, tie_word_embeddings=True, attention_bias=True,
    ),
    "window-every-expert": Qwen3MoeConfig(
        **SIZES, hidden_size=36, intermediate_size=40, moe_intermediate_size=34, num_attention_heads=3,
        num_key_value_heads=3, head_dim=14, num_experts=4, num_experts_per_tok=4, rope_parameters=LINEAR,
        use_sliding_window=True, sliding_window=9,
    ),
}  # fmt: skip


NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 3, 32), strict=True))


@pytest.mark.parametrize("windows", [False, True])
def test_keys_that_are_absent(windows: bool) -> None:
    """They mean what transformers takes them for."""
    given = GIVEN | {"use_sliding_window": windows}
    whole = json.loads(Qwen3MoeConfig(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert (OurConfig.from_hf(given).num_experts, OurConfig.from_hf(given).head_dim) == (128, 2)


def test_experts_have_two_names() -> None:
    """The published files' and that of transformers 5."""
    published, written = {"num_experts": 9}, {"num_local_experts": 9}
    assert OurConfig.from_hf(GIVEN | published) == OurConfig.from_hf(GIVEN | written)
    assert OurConfig.from_hf(GIVEN | published | written).num_experts == 9


def test_windows_from_a_layer_on_are_refused() -> None:
    """As published, with windows switched off, `max_window_layers` says nothing."""
    assert OurConfig.from_hf(GIVEN | {"max_window_layers": 48}).windows == (None,) * 3
    with pytest.raises(BringupError, match=r"BU122.*max_window_layers"):
        OurConfig.from_hf(GIVEN | {"max_window_layers": 48, "use_sliding_window": True})
