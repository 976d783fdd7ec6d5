"""Qwen3-Next shapes: cases of test_families.py, its config.json, and its tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from transformers import PreTrainedConfig, Qwen3NextConfig

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import shape_of
from bringup.graphs.qwen3_next import Qwen3NextConfig as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
# A DeltaNet normalises q · k · v of the first token, which is small if q and k are nearly orthogonal: the epsilons
# bound by how much that enlarges the rounding of float32.
CASES: dict[str, PreTrainedConfig] = {
    "more-experts-than-tokens": Qwen3NextConfig(
        **SIZES, num_hidden_layers=3, full_attention_interval=2, hidden_size=30, intermediate_size=44,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, linear_key_head_dim=12, linear_value_head_dim=10,
        linear_num_key_heads=2, linear_num_value_heads=6, moe_intermediate_size=22, num_experts=67,
        shared_expert_intermediate_size=36, num_experts_per_tok=3, rms_norm_eps=1e-3,
    ),
    "dense-layers-biases-tied": Qwen3NextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=50, num_attention_heads=3,
        num_key_value_heads=1, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=16, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_conv_kernel_dim=3, moe_intermediate_size=26,
        shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
        mlp_only_layers=[0], layer_types=["full_attention", "linear_attention", "linear_attention"],
        decoder_sparse_step=1, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=2e-3, hidden_act="gelu",
    ),
    "every-expert-linear-rope": Qwen3NextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=40, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=8, linear_num_key_heads=1,
        linear_num_value_heads=4, moe_intermediate_size=34, shared_expert_intermediate_size=34, num_experts=4,
        num_experts_per_tok=4, decoder_sparse_step=2, rope_parameters=LINEAR,
        layer_types=["linear_attention", "full_attention"],
    ),
}  # fmt: skip

NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GIVEN = dict(zip(NEEDED, (151, 64, 48, 8, 16), strict=True))

# The keys and sizes of Qwen/Qwen3-Next-80B-A3B-Instruct.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
    "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": False,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip


def test_the_published_config() -> None:
    ours, findings = OurConfig.read(PUBLISHED)
    assert findings == []
    assert (ours.num_experts, ours.experts_per_token, ours.expert_ffn, ours.shared_ffn) == (512, 10, 512, 512)
    assert (ours.key_heads, ours.value_heads, ours.key_dim, ours.value_dim, ours.taps) == (16, 32, 128, 128, 4)
    assert (ours.recurrent, ours.sparse) == ((True, True, True, False) * 12, (True,) * 48)


def test_keys_that_are_absent() -> None:
    whole = json.loads(Qwen3NextConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN) == OurConfig.from_hf(whole)
    ours = OurConfig.from_hf(GIVEN | {"num_hidden_layers": 3, "full_attention_interval": 2})
    assert ours.recurrent == (True, False, True)


def test_the_parameters() -> None:
    job = open_job("qwen3_next", "dummy", config=PUBLISHED)
    shapes = {name: shape_of(declared.axes) for name, declared in job.graph.signature().params.items()}
    first = "model.layers.0.mixer."
    assert shapes[first + "in_proj_qkv.weight"] == (8192, 2048)
    assert shapes[first + "in_proj_z.weight"] == (4096, 2048)
    assert shapes[first + "conv1d.weight"] == (8192, 4)
    assert shapes["model.layers.3.self_attn.output_gate_proj.weight"] == (4096, 2048)
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(79.67, abs=0.01)


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        ({"linear_num_value_heads": 6, "linear_num_key_heads": 4}, "BU121", "6 value heads cannot share 4 key heads"),
        ({"layer_types": ["linear_attention"] * 7}, "BU122", "8 of linear_ or full_attention"),
        ({"layer_types": ["sliding_attention"] * 8}, "BU122", "8 of linear_ or full_attention"),
        ({"num_experts": 3}, "BU124", "num_experts_per_tok"),
        ({"full_attention_interval": 0}, "BU121", "full_attention_interval"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(BringupError, match=f"{code}.*{message}"):
        OurConfig.from_hf(GIVEN | keys)


def test_types_that_contradict_the_interval() -> None:
    """transformers reads the types."""
    types = ["linear_attention", "full_attention"] * 4
    ours, findings = OurConfig.read(GIVEN | {"layer_types": types, "full_attention_interval": 4})
    assert [found.code for found in findings] == ["BU151"]
    assert ours.recurrent == (True, False) * 4


def test_the_draft_model_is_dropped(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES["every-expert-linear-rope"], tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors = {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    names = ("mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.experts.0.up_proj.weight")
    report = check(open_job(checkpoint=dict_checkpoint(tensors | dict.fromkeys(names, np.ones(4, np.float32)), config)))
    assert report.ok
    assert report.counts["dropped"] == 3
