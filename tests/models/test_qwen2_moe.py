"""Qwen2-MoE shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen2MoeConfig

from bringup.diagnostics import BringupError
from bringup.graphs.qwen2_moe import Qwen2MoeConfig as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": Qwen2MoeConfig(
        **SIZES, hidden_size=30, intermediate_size=44, moe_intermediate_size=22, shared_expert_intermediate_size=36,
        num_attention_heads=3, num_key_value_heads=1, num_experts=67, num_experts_per_tok=2, norm_topk_prob=True,
    ),
    "dense-layers-tied": Qwen2MoeConfig(
        **SIZES | {"num_hidden_layers": 4}, hidden_size=48, intermediate_size=50, moe_intermediate_size=26,
        shared_expert_intermediate_size=20, num_attention_heads=6, num_key_value_heads=2, num_experts=5,
        num_experts_per_tok=3, mlp_only_layers=[3], decoder_sparse_step=2, tie_word_embeddings=True, qkv_bias=False,
    ),
    "windows-every-expert": Qwen2MoeConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=36, intermediate_size=40, moe_intermediate_size=34,
        shared_expert_intermediate_size=34, num_attention_heads=3, num_key_value_heads=3, num_experts=4,
        num_experts_per_tok=4, rope_parameters=LINEAR, use_sliding_window=True, sliding_window=9, max_window_layers=2,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 3, 32), strict=True))

# The config.json of Qwen/Qwen1.5-MoE-A2.7B.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": False,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip


def test_the_published_config() -> None:
    ours, findings = OurConfig.read(PUBLISHED)
    assert findings == []
    assert (ours.num_experts, ours.experts_per_token, ours.expert_ffn, ours.shared_ffn) == (60, 4, 1408, 5632)
    assert (ours.windows, ours.sparse, ours.attention_bias, ours.normalise) == ((None,) * 24, (True,) * 24, True, False)


@pytest.mark.parametrize("windows", [False, True])
def test_keys_that_are_absent(windows: bool) -> None:
    """They mean what transformers takes them for; every other layer before `max_window_layers` has a window."""
    given = GIVEN | {"num_attention_heads": 16, "use_sliding_window": windows}
    whole = json.loads(Qwen2MoeConfig(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)
    assert (OurConfig.from_hf(given).num_experts, OurConfig.from_hf(given).head_dim) == (60, 4)
    assert OurConfig.from_hf(given).windows == ((4096, None, 4096) if windows else (None,) * 3)


def test_more_selected_experts_than_there_are() -> None:
    with pytest.raises(BringupError, match=r"BU124.*num_experts_per_tok"):
        OurConfig.from_hf(GIVEN | {"num_attention_heads": 16, "num_experts": 3})
