"""Mistral Large 4 shapes: cases of test_families.py, its config.json, and the names of its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, MistralLarge4Config, MistralLarge4TextConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.mistral_large4 import MistralLarge4
from bringup.graphs.mistral_large4 import MistralLarge4Config as OurConfig
from tests.models import family, parity
from tests.models.test_deepseek_v3 import YARN

VISION: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 4, "patch_size": 2,
}  # fmt: skip
SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}


def seeing(*, tied: bool = False, **text: Any) -> MistralLarge4Config:
    return MistralLarge4Config(text_config=SIZES | text, vision_config=VISION, tie_word_embeddings=tied)


# As in test_deepseek_v32.py, enough heads that keys whose scores are 0 are not at the boundary of the selection.
CASES: dict[str, MistralLarge4Config] = {
    "shared-latents-and-keys-yarn": seeing(
        hidden_size=42, intermediate_size=50, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3,
        kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=12,
        num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16, n_group=4, topk_group=2,
        routed_scaling_factor=1.5, index_n_heads=13, index_head_dim=10, index_topk=7, rope_parameters=YARN,
        indexer_types=["full", "shared", "full", "shared"], kv_source_layers=[0, 1, 0, 1], no_rope_layers=[1, 0, 1, 0],
    ),
    "every-layer-selects-biases-tied": seeing(
        tied=True, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=0, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14,
        attention_bias=True, index_n_heads=16, index_head_dim=4, index_topk=33, no_rope_layer_interval=2,
        final_logit_softcapping=2.0, rope_parameters={"rope_type": "default", "rope_theta": 100.0}, hidden_act="gelu",
    ),
}  # fmt: skip
