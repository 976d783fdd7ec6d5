"""OLMo 2 shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import Olmo2Config, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.olmo2 import Olmo2Config as OurConfig
from tests.graphs import published

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# Token ids of the class lie past these vocabularies.
IDS: dict[str, Any] = {"eos_token_id": 2, "pad_token_id": 1}
CASES: dict[str, PreTrainedConfig] = {
    "one-key-head": Olmo2Config(
        **SIZES | IDS | {"num_hidden_layers": 3}, hidden_size=40, intermediate_size=66, num_attention_heads=5,
        num_key_value_heads=1, rms_norm_eps=1e-3,
    ),
    "every-head-its-own-keys-tied": Olmo2Config(
        **SIZES | IDS, hidden_size=42, intermediate_size=50, num_attention_heads=7, tie_word_embeddings=True,
        hidden_act="gelu",
    ),
    "biases-llama3": Olmo2Config(
        **SIZES | IDS, hidden_size=48, intermediate_size=40, num_attention_heads=6, num_key_value_heads=3,
        attention_bias=True, rope_parameters=LLAMA3,
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: dict[str, Any] = published.PUBLISHED["olmo2"]["allenai/OLMo-2-1124-7B"]


def test_keys_that_are_absent() -> None:
    """They mean what transformers takes them for."""
    given = dict(zip(NEEDED, (151, 64, 48, 3, 8), strict=True))
    whole = json.loads(Olmo2Config(**given).to_json_string(use_diff=False))
    assert OurConfig.from_hf(given) == OurConfig.from_hf(whole)


def test_the_published_config() -> None:
    """7.3 billion parameters; norms of queries and keys are as wide as their projections."""
    shapes = {name: tuple(a.size for a in p.axes) for name, p in job().graph.signature().items()}
    assert round(sum(map(product, shapes.values())) / 1e9, 1) == 7.3
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (4096,)
    assert not any("input_layernorm" in name for name in shapes)


def job():
    return open_job("olmo2", "dummy", config=PUBLISHED)


def product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@pytest.mark.parametrize(
    ("code", "key", "value"),
    [
        ("BU122", "hidden_act", "gegelu"),
        ("BU121", "num_key_value_heads", 5),
        ("BU120", "attn_logit_softcapping", 50.0),
        ("BU120", "sliding_window", 4096),
        ("BU120", "clip_qkv", 8.0),
    ],
)
def test_configs_that_are_refused(code: str, key: str, value: Any) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(PUBLISHED | {key: value})
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
