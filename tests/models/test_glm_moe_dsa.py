"""GLM-5 shapes: cases of test_families.py."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig
from transformers.models.glm_moe_dsa import GlmMoeDsaConfig

from bringup.graphs.core.axes import shape_of
from bringup.graphs.core.graph import Graph
from bringup.graphs.deepseek_mtp import DeepseekMtp, DeepseekMtpConfig
from bringup.graphs.glm_moe_dsa import GlmMoeDsa
from bringup.graphs.glm_moe_dsa import GlmMoeDsaConfig as OurConfig
from tests.graphs.published import PUBLISHED
from tests.models import family
from tests.models.test_deepseek_v3 import YARN, save_biased

# As in test_deepseek_v32.py, enough heads that keys whose scores are 0 are not at the boundary of the selection.
SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
CASES: dict[str, PreTrainedConfig] = {
    "shared-keys-yarn": GlmMoeDsaConfig(
        **SIZES, hidden_size=42, intermediate_size=50, num_hidden_layers=4, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, mlp_layer_types=["dense", "sparse", "sparse", "sparse"], n_routed_experts=12,
        num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16, n_group=4, topk_group=2,
        index_n_heads=13, index_head_dim=10, index_topk=7, rope_parameters=YARN,
        indexer_types=["full", "shared", "full", "shared"],
    ),
    "every-layer-selects-biases-tied": GlmMoeDsaConfig(
        **SIZES, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, q_lora_rank=9, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14,
        attention_bias=True, index_n_heads=16, index_head_dim=4, index_topk=33, tie_word_embeddings=True,
    ),
    "more-keys-than-there-are": GlmMoeDsaConfig(
        **SIZES, hidden_size=36, intermediate_size=44, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=5, q_lora_rank=13, kv_lora_rank=11, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=5,
        first_k_dense_replace=0, n_routed_experts=9, num_experts_per_tok=4, moe_intermediate_size=10,
        norm_topk_prob=False, index_n_heads=3, index_head_dim=13, index_topk=200, index_topk_freq=2,
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(save_biased(CASES[name], folder, dtype), folder)


def elements(graph: Graph) -> int:
    return sum(prod(shape_of(declared.axes)) for declared in graph.signature().values())


def test_the_parameters_of_the_published_model() -> None:
    """The number of values in the files of zai-org/GLM-5.1; its draft has no embedding and no head of its own."""
    raw = PUBLISHED["glm_moe_dsa"]["zai-org/GLM-5.1"]
    model = GlmMoeDsa(OurConfig.from_hf(raw), "bfloat16")
    draft = DeepseekMtp(DeepseekMtpConfig.from_hf(raw), "bfloat16")
    shared = 2 * raw["vocab_size"] * raw["hidden_size"]
    assert elements(model) + elements(draft) - shared == 753_864_139_008


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_freq": 3},
        {"index_topk_freq": 0},
        {"index_topk_pattern": "FSSFFSF"},
        {"index_topk_pattern": ["full", "shared", "full", "full", "full", "shared", "shared"], "index_topk_freq": 2},
    ],
)
def test_which_layers_select_keys(keys: dict[str, Any]) -> None:
    """Those of transformers, for configs without `indexer_types`; and the same with it."""
    theirs = GlmMoeDsaConfig(num_hidden_layers=7, **keys)
    wanted = tuple(kind == "full" for kind in theirs.indexer_types)
    raw = {key: value for key, value in theirs.to_dict().items() if value is not None}
    assert OurConfig.from_hf(raw).selecting == wanted
    del raw["indexer_types"]
    assert OurConfig.from_hf(raw | keys).selecting == wanted


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "indexer_types", {"indexer_types": ["shared", "full", "full"]}),  # no layer to share with
        ("BU122", "indexer_types", {"indexer_types": ["full", "full"]}),
        ("BU122", "index_topk_pattern", {"indexer_types": None, "index_topk_pattern": "FSX"}),
        ("BU121", "index_topk_freq", {"index_topk_freq": None}),
        ("BU151", "index_topk_pattern", {"index_topk_pattern": "FSF"}),
        ("BU122", "indexer_rope_interleave", {"indexer_rope_interleave": False}),
    ],
)
def test_configs_that_are_rejected_or_contradict_themselves(code: str, key: str, changes: dict[str, Any]) -> None:
    raw = CASES["every-layer-selects-biases-tied"].to_dict()
    _, findings = OurConfig.read({name: value for name, value in raw.items() if value is not None} | changes)
    assert [(finding.code, finding.parameter) for finding in findings] == [(code, key)]
