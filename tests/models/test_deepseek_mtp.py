"""Drafts of DeepSeek-V3 and later models with its layers: parity with transformers' decoder layer, between parts that a
draft adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import DeepseekV3Config, Glm4MoeLiteConfig, PreTrainedConfig
from transformers.models.deepseek_v32 import DeepseekV32Config
from transformers.models.glm_moe_dsa import GlmMoeDsaConfig

from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.graphs.deepseek_mtp import DeepseekMtpConfig as OurConfig
from bringup.graphs.deepseek_v3 import DeepseekV3Config as MainConfig
from tests.models import drafts, family, parity
from tests.models.test_deepseek_v3 import SIZES, YARN

PROMPT, STEPS = family.PROMPT, family.STEPS
CASES: dict[str, PreTrainedConfig] = {
    "groups-yarn": DeepseekV3Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=16, n_group=4, topk_group=2, rope_parameters=YARN,
    ),
    "dense-straight-queries-tied": DeepseekV3Config(
        **SIZES, hidden_size=35, intermediate_size=44, num_hidden_layers=1, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=None, kv_lora_rank=11, qk_nope_head_dim=6, qk_rope_head_dim=8,
        v_head_dim=5, first_k_dense_replace=9, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        tie_word_embeddings=True, rope_interleave=False,
        rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    ),
    "more-experts-than-tokens-biases": DeepseekV3Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=0, n_routed_experts=69, num_experts_per_tok=6, n_shared_experts=1,
        moe_intermediate_size=10, n_group=3, topk_group=1, norm_topk_prob=False, attention_bias=True,
    ),
    "v32": DeepseekV32Config(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1,
        moe_intermediate_size=16, n_group=4, topk_group=2, index_n_heads=13, index_head_dim=10, index_topk=7,
    ),
    "glm-lite-listed-layers": Glm4MoeLiteConfig(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14, mlp_layer_types=["sparse", "dense"],
    ),
    "glm-whose-last-layer-selects-no-keys": GlmMoeDsaConfig(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=2, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14,
        index_n_heads=16, index_head_dim=4, index_topk=7, indexer_types=["full", "shared"],
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> drafts.Draft:
    """The draft of one of CASES, beside its model."""
    folder.mkdir(exist_ok=True)
    return drafts.Draft(drafts.save(CASES[name], folder, dtype), folder / "whole", "deepseek_mtp")


def opened(folder: Path, **settings: Any) -> Job:
    return open_job("deepseek_mtp", str(folder), **settings)


def arrays(job: Job) -> dict[str, np.ndarray]:
    """Every parameter, of a checkpoint that fits."""
    assert not check(job).findings
    return materialise(job.plan, job.checkpoint)


def assert_parity(job: Job, wanted: np.ndarray, tokens: list[int], hidden: np.ndarray, target: str, out: Path) -> str:
    """Prefill and decode; hidden states come as numpy's own floats, which are twice as wide as the bundle's."""
    assert not check(job).findings
    bundle = build(job, out=out, target=target, max_seq_len=len(tokens), buckets=(PROMPT,), all_logits=True)
    found = parity.distance(parity.run(load(bundle), tokens, PROMPT, hidden=hidden.astype(np.float64)), wanted)
    print(found)
    assert found.worst <= family.WORST[target], str(found)
    assert found.wrong == 0
    return str(found)


def test_keys_that_are_absent() -> None:
    """The main model's defaults, and one draft."""
    raw = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 34, "num_hidden_layers": 7}
    raw |= {"num_attention_heads": 16, "model_type": "deepseek_v3"}
    config = OurConfig.from_hf(raw)
    main = MainConfig.from_hf(raw)
    assert config.block == replace(main, layers=range(7, 8), sparse=(True,), windows=(None,))
    assert config.depth == 1
    assert OurConfig.from_hf(raw | {"first_k_dense_replace": 8}).block.sparse == (False,)
