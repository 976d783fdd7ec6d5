"""DeepSeek's config.json: as published, with keys absent, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import DeepseekV2Config, DeepseekV3Config, PreTrainedConfig
from transformers.models.deepseek_v32 import DeepseekV32Config

from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.deepseek_v2 import DeepseekV2Config as OurV2
from bringup.graphs.deepseek_v3 import DeepseekV3
from bringup.graphs.deepseek_v3 import DeepseekV3Config as OurV3
from bringup.graphs.deepseek_v32 import DeepseekV32Config as OurV32

# Keys that a config.json has to have.
NEEDED = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
# deepseek-ai/DeepSeek-V3 on the Hugging Face Hub, config.json, without the keys of training and generation.
PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
    "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 4,
    "topk_method": "noaux_tc", "v_head_dim": 128,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
}  # fmt: skip


def test_the_published_config_is_read_and_its_parameters_counted() -> None:
    config = OurV3.from_hf(PUBLISHED)
    assert (config.draft_layers, sum(config.sparse)) == (1, 58)
    assert config.rope.mscale_all_dim == config.rope.attention_factor == 1.0
    graph = DeepseekV3(config, "bfloat16")
    elements = sum(
        declared.nbytes // (4 if declared.dtype == "float32" else 2) for declared in graph.signature().values()
    )
    assert elements == 671_026_419_200  # "671B total parameters" (DeepSeek-V3 report); the draft's 14B not counted
    assert graph.state_bytes() == 61 * (512 + 64) * 2


def test_both_names_of_indexed_layers_are_read() -> None:
    """transformers 5.17 writes the older one."""
    raw = json.loads(DeepseekV32Config(num_hidden_layers=2).to_json_string(use_diff=False))
    whole = OurV32.from_hf(raw | {"layer_types": ["indexed_attention"] * 2})
    assert OurV32.from_hf(raw | {"layer_types": ["deepseek_sparse_attention"] * 2}) == whole
    with pytest.raises(BringupError, match="layer_types"):
        OurV32.from_hf(raw | {"layer_types": ["full_attention"] * 2})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(DeepseekV2Config(num_experts_per_tok=6), OurV2), (DeepseekV3Config(), OurV3), (DeepseekV32Config(), OurV32)],
)
def test_absent_keys_mean_what_they_mean_to_transformers(theirs: PreTrainedConfig, ours: type[HFConfig]) -> None:
    raw = json.loads(theirs.to_json_string(use_diff=False))
    whole = ours.from_hf(raw)
    absent = raw.keys() - NEEDED - {"num_experts_per_tok"}
    for key in absent:
        assert ours.from_hf({name: value for name, value in raw.items() if name != key}) == whole, key
    few = {name: value for name, value in raw.items() if name not in absent}
    assert ours.from_hf(few) == whole


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "num_key_value_heads", {"num_key_value_heads": 64}),
        ("BU122", "scoring_func", {"scoring_func": "softmax"}),
        ("BU122", "topk_method", {"topk_method": "greedy"}),
        ("BU124", "n_routed_experts", {"n_routed_experts": 1 << 30}),
        ("BU121", "n_group", {"n_group": 7}),
        ("BU121", "n_group", {"n_group": 256}),
        ("BU121", "topk_group", {"topk_group": 9}),
        ("BU121", "num_experts_per_tok", {"num_experts_per_tok": 129}),
        ("BU120", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurV3.from_hf(PUBLISHED | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]


@pytest.mark.parametrize("ours", [OurV2, OurV3, OurV32])
@pytest.mark.parametrize("group", ["rope_scaling", "rope_parameters"])
def test_a_null_factor_is_refused_where_attention_is_scaled_by_it(ours: type[HFConfig], group: str) -> None:
    rope = PUBLISHED["rope_scaling"] | {"factor": None}
    raw = {key: value for key, value in PUBLISHED.items() if key != "rope_scaling"}
    _, findings = ours.read(raw | {group: rope})
    assert ("BU121", "factor") in [(finding.code, finding.parameter) for finding in findings]
    _, findings = ours.read(raw | {group: rope | {"mscale_all_dim": 0}})
    assert "factor" not in [finding.parameter for finding in findings]


V2 = json.loads(DeepseekV2Config(num_experts_per_tok=6).to_json_string())


@pytest.mark.parametrize(
    ("kind", "raw", "key", "value"),
    [(OurV2, V2, "norm_topk_prob", True), (OurV2, V2, "moe_layer_freq", 2), (OurV3, PUBLISHED, "moe_layer_freq", 2)],
)
def test_two_readings_of_one_key_are_a_warning(kind: Any, raw: dict[str, Any], key: str, value: Any) -> None:
    """Published code reads it and transformers does not: its reading counts (test_rare_words.py)."""
    config, findings = kind.read(raw | {key: value})
    assert [(found.code, found.parameter, found.severity) for found in findings] == [("BU151", key, Severity.WARNING)]
    assert config == kind.from_hf(raw)
