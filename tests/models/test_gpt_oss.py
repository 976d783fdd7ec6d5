"""gpt-oss shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import GptOssConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.gpt_oss import GptOssConfig as OurConfig

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": GptOssConfig(
        **SIZES, hidden_size=30, intermediate_size=22, num_attention_heads=5, num_key_value_heads=1, head_dim=12,
        num_local_experts=67, num_experts_per_tok=1, sliding_window=9, rope_parameters=YARN | {"truncate": False},
    ),
    "every-expert-tied": GptOssConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=42, intermediate_size=42, num_attention_heads=6,
        num_key_value_heads=3, head_dim=10, num_local_experts=3, num_experts_per_tok=3, sliding_window=33,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], tie_word_embeddings=True,
        attention_bias=False, swiglu_alpha=1.3, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "calm": GptOssConfig(
        **SIZES, hidden_size=36, intermediate_size=20, num_attention_heads=3, num_key_value_heads=3, head_dim=8,
        num_local_experts=5, num_experts_per_tok=2, sliding_window=17, swiglu_limit=0.7,
    ),
}  # fmt: skip


SAID = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 34,
    "num_attention_heads": 16,
    "num_hidden_layers": 3,
}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"rope_parameters": {}},
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 5e4},
        {"sliding_window": 33},
    ],
)
def test_keys_that_are_absent(words: dict[str, Any]) -> None:
    """transformers' own defaults: YaRN, where it is not told of another rope, and a window in every other layer."""
    theirs = json.loads(GptOssConfig(**SAID | words).to_json_string(use_diff=False))
    assert OurConfig.from_hf(SAID | words) == OurConfig.from_hf(theirs)


def test_keys_of_the_published_config() -> None:
    """openai/gpt-oss-20b says these beside those that transformers has, which ignores them."""
    said = {"experts_per_token": 4, "initial_context_length": 4096}
    assert OurConfig.from_hf(SAID | said) == OurConfig.from_hf(SAID)
    for key in said:
        with pytest.raises(BringupError, match=f"BU122.*{key}"):
            OurConfig.from_hf(SAID | said | {key: 5})
