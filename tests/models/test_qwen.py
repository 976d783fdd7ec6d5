"""Qwen 1, which transformers has no code for: Qwen2 and Llama checkpoints in the published layout, against these."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config

from bringup.adapters.planning.expected_headers import published
from bringup.adapters.qwen import adapter
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.qwen import QWen
from bringup.graphs.qwen import QWenConfig as OurConfig
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
THETA = {"rope_type": "default", "rope_theta": 2e5}
CASES: dict[str, PreTrainedConfig] = {
    "odd-heads": Qwen2Config(
        **SIZES, hidden_size=42, intermediate_size=33, num_attention_heads=7, num_key_value_heads=7,
    ),
    "three-layers-tied": Qwen2Config(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=50, num_attention_heads=3,
        num_key_value_heads=3, tie_word_embeddings=True, rms_norm_eps=1e-3, rope_parameters=THETA,
    ),
    "biases-everywhere": LlamaConfig(  # no_bias = false
        **SIZES, hidden_size=40, intermediate_size=24, num_attention_heads=5, attention_bias=True, mlp_bias=True,
    ),
}  # fmt: skip
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
NAMES = {
    "model.": "transformer.", "layers.": "h.", "embed_tokens": "wte", ".norm.": ".ln_f.", "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2", "self_attn.qkv_proj": "attn.c_attn", "self_attn.o_proj": "attn.c_proj",
    "gate_proj": "w2", "up_proj": "w1", "down_proj": "c_proj",
}  # fmt: skip

OTHERWISE = ("mlp_bias", "rms_norm_eps", "rope_parameters", "max_window_layers", "head_dim")  # said in other words
NEVER = object()


def words(raw: dict[str, Any]) -> dict[str, Any]:
    """The config.json of Qwen2 or Llama as Qwen's, which does not say what is always so."""
    always = {
        "hidden_act": "silu", "attention_bias": True, "use_sliding_window": False, "sliding_window": None,
        "layer_types": ["full_attention"] * raw["num_hidden_layers"],
    }  # fmt: skip
    own = {key: value for key, value in raw.items() if key not in OTHERWISE and value != always.get(key, NEVER)}
    return own | {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "intermediate_size": 2 * raw["intermediate_size"],
        "kv_channels": raw["hidden_size"] // raw["num_attention_heads"], "no_bias": not raw.get("mlp_bias", False),
        "seq_length": raw["max_position_embeddings"], "layer_norm_epsilon": raw["rms_norm_eps"],
        "rotary_emb_base": raw["rope_parameters"]["rope_theta"], "rotary_pct": 1.0, "scale_attn_weights": True,
        "emb_dropout_prob": 0.0, "attn_dropout_prob": 0.0, "use_dynamic_ntk": True, "use_logn_attn": True,
        "use_flash_attn": "auto", "bf16": False, "fp16": False, "fp32": False, "onnx_safe": None,
    }  # fmt: skip


def name(theirs: str) -> str:
    for part, own in NAMES.items():
        theirs = theirs.replace(part, own)
    return theirs


def publish(folder: Path, out: Path) -> Path:
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    return family.renamed(folder, out, name, words(raw), FUSED)


def write(case: str, folder: Path, dtype: str = "float32") -> family.Written:
    original = parity.save_checkpoint(CASES[case], folder / "original", dtype)
    return family.Written(publish(original, folder / "published"), original)


# The config.json of Qwen/Qwen-7B, but for the names of its code.
PUBLISHED: dict[str, Any] = {
    "architectures": ["QWenLMHeadModel"], "attn_dropout_prob": 0.0, "bf16": False, "emb_dropout_prob": 0.0,
    "fp16": False, "fp32": False, "hidden_size": 4096, "intermediate_size": 22016, "initializer_range": 0.02,
    "kv_channels": 128, "layer_norm_epsilon": 1e-06, "max_position_embeddings": 32768, "model_type": "qwen",
    "no_bias": True, "num_attention_heads": 32, "num_hidden_layers": 32, "onnx_safe": None, "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 8192, "tie_word_embeddings": False,
    "tokenizer_class": "QWenTokenizer", "transformers_version": "4.32.0", "use_cache": True, "use_dynamic_ntk": True,
    "use_flash_attn": "auto", "use_logn_attn": True, "vocab_size": 151936,
}  # fmt: skip


def test_the_published_config() -> None:
    ours = OurConfig.from_hf(PUBLISHED)
    assert (ours.hidden, ours.ffn, len(ours.windows), ours.num_kv_heads, ours.head_dim) == (4096, 11008, 32, 32, 128)
    assert (ours.eps, ours.rope.theta, ours.bias, ours.tied_head) == (1e-6, 10000.0, False, False)
    assert OurConfig.from_hf(PUBLISHED | {"rotary_pct": 0.25}).rope.channels(128) == 32


def test_the_published_size() -> None:
    """`total_size` in the model.safetensors.index.json of Qwen/Qwen-7B."""
    config = OurConfig.from_hf(PUBLISHED)
    headers = published(QWen(config, "bfloat16").signature(), adapter(config))
    assert 2 * sum(math.prod(info.shape) for info in headers.values()) == 15_442_649_088
    assert headers["h.31.attn.c_attn.weight"].shape == (3 * 4096, 4096)


NTK, LOGN = "use_dynamic_ntk", "use_logn_attn"


@pytest.mark.parametrize(
    ("switches", "longest"),
    [
        ({NTK: True, LOGN: True}, 8192),
        ({NTK: True, LOGN: False}, 8192),
        ({NTK: False, LOGN: True}, 8192),
        ({NTK: False, LOGN: False}, 32768),
        ({NTK: None}, 8192),  # None: the key is left out, which means true
    ],
)
def test_the_context_ends_where_numbers_would_change(switches: dict[str, Any], longest: int) -> None:
    raw = {key: value for key, value in (PUBLISHED | switches).items() if value is not None or key not in switches}
    assert OurConfig.from_hf(raw).max_positions == longest


def test_a_longer_context_is_refused(tmp_path: Path) -> None:
    checkpoint = write("odd-heads", tmp_path / "model").checkpoint
    with pytest.raises(BringupError, match="BU007"):
        build(open_job(checkpoint=str(checkpoint)), out=tmp_path / "bundle", target="torch", max_seq_len=1025)


@pytest.mark.parametrize("key", sorted(PUBLISHED.keys() - NEUTRAL - {"onnx_safe"}))
def test_no_key_is_overlooked(key: str) -> None:
    with pytest.raises(BringupError, match=r"BU12[0-4]"):
        OurConfig.from_hf(PUBLISHED | {key: "nonsense"})


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_channels": 64},
        {"seq_length": None},
        {"rotary_pct": 0.2},  # 25 channels: no pairs
        {"scale_attn_weights": False},
        {"use_cache_quantization": True},
        {"num_key_value_heads": 8},
        {"hidden_act": "gelu"},
        {"rope_theta": 1e6},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"visual": {"heads": 16}},  # Qwen-VL
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(BringupError, match=r"BU12[0-2]") as caught:
        OurConfig.from_hf(PUBLISHED | changes)
    assert [finding.parameter for finding in caught.value.findings] == [key]
