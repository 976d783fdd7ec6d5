"""The words of config.json that a GGUF file's metadata is turned into."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bringup.adapters.checkpoints.gguf_config import Hyperparameters
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from bringup.graphs.gemma3 import Gemma3Config
from bringup.graphs.llama import LlamaConfig
from bringup.graphs.registry import FAMILIES
from tests.adapters.gguf_files import hyperparameters, write
from tests.adapters.written import raises


def config_of(tmp_path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> dict[str, Any]:
    def both(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        fill(writer)

    return dict(open_checkpoint(str(write(tmp_path / "m.gguf", both))).config)


def test_a_config_that_the_graph_accepts(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_head_count_kv(2)
        writer.add_rope_dimension_count(16)
        writer.add_rope_freq_base(100000.0)
        writer.add_vocab_size(300)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float32))

    config = config_of(tmp_path, fill)
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 2048,
        "vocab_size": 300,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    built_config = LlamaConfig.from_hf(config)
    assert (built_config.tied_head, built_config.head_dim, built_config.rope.theta) == (True, 16, 100000.0)


def test_an_output_matrix_and_biases_are_seen(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_rope_dimension_count(32)
        for name in ("token_embd.weight", "output.weight", "blk.0.attn_q.bias"):
            writer.add_tensor(name, np.zeros((10, 64), np.float32))

    config = config_of(tmp_path, fill)
    assert config["tie_word_embeddings"] is False
    assert (config["attention_bias"], config["mlp_bias"]) == (True, False)
    assert (config["head_dim"], config["vocab_size"], config["rope_theta"]) == (32, 10, 10000.0)
    assert not any(key.startswith("llama.") for key in config)


def test_what_config_json_has_no_word_for_is_not_lost(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_vocab_size(10)
        writer.add_rope_dimension_count(8)  # of 16: a partial rotation
        writer.add_logit_scale(0.5)

    config = config_of(tmp_path, fill)
    assert config["llama.rope.dimension_count"] == 8
    assert config["llama.logit_scale"] == 0.5
    with pytest.raises(BringupError) as caught:
        LlamaConfig.from_hf(config)
    assert {finding.parameter for finding in caught.value.findings} >= {"llama.logit_scale"}


def test_rope_scaling(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
        writer.add_rope_scaling_finetuned(True)

    config = config_of(tmp_path, linear)
    stated = config["max_position_embeddings"]
    linear_words = {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": stated}
    assert config["rope_scaling"] == linear_words
    assert (
        LlamaConfig.from_hf(config | {"vocab_size": 8}).max_positions == stated
    )  # llama.cpp never multiplies the context
    assert config_of(tmp_path, yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
    }
    none = config_of(tmp_path, lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.NONE))
    assert "rope_scaling" not in none


def llama3_factors(theta: float, dim: int, factor: float, high: float) -> np.ndarray:
    """Frequencies without scaling over frequencies with, both by transformers."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": theta, "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    parameters |= {"high_freq_factor": high, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        hidden_size=dim, num_attention_heads=1, max_position_embeddings=131072, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return (theta ** (-np.arange(0, dim, 2) / dim) / scaled.numpy()).astype(np.float32)


@pytest.mark.parametrize(("dim", "factor", "high"), [(128, 8.0, 4.0), (64, 32.0, 4.0), (128, 16.0, 1.0)])
def test_llama3_scaling_is_recognised_in_its_tensor(tmp_path: Path, dim: int, factor: float, high: float) -> None:
    factors = llama3_factors(500000.0, dim, factor, high)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(500000.0)
        writer.add_tensor("rope_freqs.weight", factors)

    assert config_of(tmp_path, fill)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": pytest.approx(factor, rel=1e-5),
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }
    factors[dim // 4] *= 1.01
    config = config_of(tmp_path, fill)
    assert config["rope_scaling"]["rope_type"] not in ("llama3", "default")


def test_mixtral_is_a_llama_with_experts(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(2)

    config = config_of(tmp_path, fill)
    assert config["architectures"] == ["MixtralForCausalLM"]
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)


@pytest.mark.parametrize("window", [None, 0, 512])
def test_gemma3_without_a_window_has_layers_that_see_all(tmp_path: Path, window: int | None) -> None:
    """As the converter writes a Gemma 3 whose config has no `sliding_window`."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    hyperparameters(writer)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(300)
    if window is not None:
        writer.add_sliding_window(window)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    config = dict(open_checkpoint(str(tmp_path / "m.gguf")).config)
    assert config["sliding_window_pattern"] == (6 if window else 1)
    assert set(Gemma3Config.from_hf(config).windows) == {window or None}


def test_other_architectures_say_what_they_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3n")
    writer.add_embedding_length(64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    assert config == {"architectures": ["gemma3n (GGUF)"], "embedding_length": 64}


def test_a_missing_hyperparameter(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_embedding_length(64)
        writer.add_array("llama.attention.head_count", [4, 4])

    file = write(tmp_path / "m.gguf", fill)
    with raises("BU224", "`llama.feed_forward_length`, `llama.block_count`, `llama.attention.head_count`"):
        open_checkpoint(str(file))


@pytest.mark.parametrize("width", ["x", [1, 2], math.inf, math.nan])
def test_a_width_that_is_no_number_is_refused_with_the_config(width: object) -> None:
    values: dict[str, Any] = {
        "block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 4, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 4, "rope.freq_base": 10000.0, "expert_count": 4, "expert_used_count": 2,
        "expert_feed_forward_length": 16, "expert_shared_count": 1, "expert_gating_func": 2, "expert_group_count": 1,
        "expert_group_used_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.0,
        "leading_dense_block_count": 1, "attention.key_length": width,
    }  # fmt: skip
    family = next(family for family in FAMILIES if family.name == "glm4_moe")
    raw = family.load("dialect").config(Hyperparameters(Path("m.gguf"), "glm4moe", values, {}, 32, {}))
    config, findings = family.load("config").read(raw, {})
    assert config is None or any(finding.stops for finding in findings)
