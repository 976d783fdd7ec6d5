"""EXAONE 3, which transformers has no code for: Llama checkpoints under the published names, against Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedConfig

from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.exaone import ExaoneConfig as OurConfig
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "llama3-tied": LlamaConfig(
        **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, num_key_value_heads=1,
        tie_word_embeddings=True, rope_parameters=LLAMA3,
    ),
    "three-layers": LlamaConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=50, num_attention_heads=6,
        num_key_value_heads=3, rms_norm_eps=1e-3,
    ),
    "gelu": LlamaConfig(
        **SIZES, hidden_size=50, intermediate_size=64, num_attention_heads=5, num_key_value_heads=5, head_dim=10,
        hidden_act="gelu",
    ),
}  # fmt: skip
WORDS = {
    "num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon",
}  # fmt: skip
NAMES = {
    "model.": "transformer.", "layers.": "h.", "embed_tokens": "wte", ".norm.": ".ln_f.", "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2", "self_attn.": "attn.attention.", "o_proj": "out_proj", "gate_proj": "c_fc_0",
    "up_proj": "c_fc_1", "down_proj": "c_proj",
}  # fmt: skip


def words(raw: dict[str, Any]) -> dict[str, Any]:
    """Llama's config.json as EXAONE's, in the words of transformers 4."""
    renamed = {WORDS.get(key, key): value for key, value in raw.items()}
    rope = dict(renamed.pop("rope_parameters"))
    del renamed["attention_bias"], renamed["mlp_bias"]
    return renamed | {
        "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "embed_dropout": 0.0,
        "rope_theta": rope.pop("rope_theta"), "rope_scaling": None if rope["rope_type"] == "default" else rope,
    }  # fmt: skip


def name(llama: str) -> str:
    for part, published in NAMES.items():
        llama = llama.replace(part, published)
    return llama


def publish(folder: Path, out: Path) -> Path:
    return family.renamed(folder, out, name, words(json.loads((folder / "config.json").read_text("utf-8"))))


def write(case: str, folder: Path, dtype: str = "float32") -> family.Written:
    original = parity.save_checkpoint(CASES[case], folder / "original", dtype)
    return family.Written(publish(original, folder / "published"), original)


# The config.json of LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct, but for the names of its code.
PUBLISHED: dict[str, Any] = {
    "activation_function": "silu", "architectures": ["ExaoneForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "embed_dropout": 0.0, "eos_token_id": 361, "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 4096, "model_type": "exaone",
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_layers": 32, "pad_token_id": 0, "rope_scaling": None,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.45.2",
    "use_cache": True, "vocab_size": 102400,
}  # fmt: skip


def test_the_published_config() -> None:
    ours = OurConfig.from_hf(PUBLISHED)
    assert (ours.hidden, len(ours.windows), ours.num_kv_heads, ours.head_dim) == (4096, 32, 8, 128)
    assert (ours.eps, ours.rope.theta, ours.tied_head) == (1e-5, 5e5, False)
    assert OurConfig.from_hf(PUBLISHED | {"num_hidden_layers": 32}) == ours


def test_keys_that_are_absent() -> None:
    """transformers 4's base class, which the published one extends, ties the head where the config does not say."""
    left = PUBLISHED.keys() - {"tie_word_embeddings", "rope_theta", "num_key_value_heads", "activation_function"}
    ours = OurConfig.from_hf({key: PUBLISHED[key] for key in left})
    assert (ours.tied_head, ours.rope.theta, ours.num_kv_heads, ours.activation) == (True, 1e4, 32, "silu")


@pytest.mark.parametrize("key", sorted(PUBLISHED.keys() - NEUTRAL))
def test_no_key_is_overlooked(key: str) -> None:
    with pytest.raises(BringupError, match=r"BU12[0-4]"):
        OurConfig.from_hf(PUBLISHED | {key: "nonsense"})


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 31}, {"layer_norm_epsilon": None}, {"rms_norm_eps": 1e-5}])
def test_configs_that_are_refused(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(BringupError, match=f"BU12[0-2].*`{key}`"):
        OurConfig.from_hf(PUBLISHED | changes)
