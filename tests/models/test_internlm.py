"""InternLM, which transformers has no code for: Llama checkpoints with the published config, against Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.internlm import InternLMConfig as OurConfig
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "biases": LlamaConfig(
        **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, attention_bias=True,
    ),
    "no-biases-tied": LlamaConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=50, num_attention_heads=6,
        tie_word_embeddings=True, rms_norm_eps=1e-3,
    ),
    "theta": LlamaConfig(
        **SIZES, hidden_size=30, intermediate_size=64, num_attention_heads=5, attention_bias=True, hidden_act="gelu",
        rope_parameters={"rope_type": "default", "rope_theta": 2e5},
    ),
}  # fmt: skip

ROPE = "rope_parameters"


def words(raw: dict[str, Any]) -> dict[str, Any]:
    """Llama's config.json as InternLM's."""
    own = {key: value for key, value in raw.items() if key not in ("head_dim", "mlp_bias", "attention_bias", ROPE)}
    return own | {
        "architectures": ["InternLMForCausalLM"], "model_type": "internlm", "bias": raw["attention_bias"],
        "rotary": {"base": raw[ROPE]["rope_theta"], "type": "dynamic"},
    }  # fmt: skip


def publish(folder: Path, out: Path) -> Path:
    return family.renamed(folder, out, str, words(json.loads((folder / "config.json").read_text("utf-8"))))


def write(case: str, folder: Path, dtype: str = "float32") -> family.Written:
    original = parity.save_checkpoint(CASES[case], folder / "original", dtype)
    return family.Written(publish(original, folder / "published"), original)


# The config.json of internlm/internlm-20b, but for the names of its code.
PUBLISHED: dict[str, Any] = {
    "architectures": ["InternLMForCausalLM"], "bias": False, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 13824,
    "max_position_embeddings": 4096, "model_type": "internlm", "num_attention_heads": 40, "num_hidden_layers": 60,
    "num_key_value_heads": 40, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
    "vocab_size": 103168, "rotary": {"base": 10000, "type": "dynamic"},
}  # fmt: skip


def test_the_published_config() -> None:
    ours = OurConfig.from_hf(PUBLISHED)
    assert (ours.hidden, len(ours.windows), ours.num_kv_heads, ours.attention_bias) == (5120, 60, 40, False)
    assert (ours.rope.kind, ours.rope.theta, ours.max_positions) == ("default", 10000.0, 4096)


def test_keys_that_are_absent() -> None:
    """The first files of InternLM-7B have no `rotary`; the published class has biases by default."""
    assert OurConfig.from_hf({key: value for key, value in PUBLISHED.items() if key != "rotary"}).rope.theta == 1e4
    assert OurConfig.from_hf({key: value for key, value in PUBLISHED.items() if key != "bias"}).attention_bias


@pytest.mark.parametrize("rotary", [{"type": "origin"}, {"type": "dynamic", "scaling_factor": 4.0}])
def test_theta_grows_only_past_the_context(rotary: dict[str, Any]) -> None:
    """Up to `max_position_embeddings` the types of rope are one; there the context ends."""
    ours = OurConfig.from_hf(PUBLISHED | {"rotary": {"base": 10000} | rotary})
    assert ours == OurConfig.from_hf(PUBLISHED)


@pytest.mark.parametrize("key", sorted(PUBLISHED.keys() - NEUTRAL))
def test_no_key_is_overlooked(key: str) -> None:
    with pytest.raises(BringupError, match=r"BU12[0-4]"):
        OurConfig.from_hf(PUBLISHED | {key: "nonsense"})


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("type", {"rotary": {"base": 10000, "type": "spiral"}}),
        ("base", {"rotary": {"base": 0, "type": "origin"}}),
        ("turns", {"rotary": {"base": 10000, "type": "origin", "turns": 3}}),
        ("rope_theta", {"rope_theta": 20000.0}),
        ("rope_scaling", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("rope_parameters", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ],
)
def test_configs_that_are_refused(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError, match=f"BU12[0-2].*`{key}`"):
        OurConfig.from_hf(PUBLISHED | changes)
