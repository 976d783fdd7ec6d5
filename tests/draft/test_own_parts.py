# pyright: reportUnknownVariableType=false
"""What `GroupedAttention`, `SparseMLP` and `CausalLM` have no setting for is drafted: the logits are transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import draft
from bringup.compile.draft.modelling.meaning import meaning_of
from bringup.compile.draft.modelling.parts import parts_of
from bringup.testing import assert_fits, assert_same_logits
from tests.draft.checkpoints import assert_complete, drafted_with

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
    "num_key_value_heads": 6,
}  # fmt: skip
ROUTED = {
    "n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
    "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
GROWING = {**YARN, "llama_4_scaling_beta": 0.5}
SCALES = {"attention_multiplier": 0.2, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22}
# By name: the model type, its keys, and words of the drafted graph without which its logits would be others.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "norms of each head": ("cohere", {"use_qk_norm": True}, ("HeadNorm(h, d, config.eps)",)),
    "norms of each head, a tensor for each": ("stablelm", {"qk_layernorm": True}, ("HeadNorm(h, d, config.eps)",)),
    "clipped": ("olmo", {"clip_qkv": 0.05, "num_key_value_heads": 6}, ("attention.clip = config.clip",)),
    "clipped after norms": ("olmoe", {**EXPERTS, "clip_qkv": 0.5, "num_key_value_heads": 6}, (".clamp(-self.clip",)),
    "inverse rope, norms without weights": ("nanochat", {}, ("cos, -sin)", "PlainRMSNorm", "self.model.norm(x_Nm)")),
    "one plus weight": ("nemotron", {"head_dim": 8}, ("norm = OnePlusLayerNorm",)),
    "norms before the last matrices": ("bitnet", {}, ("attention.o_norm =", "NormedMLP(")),
    "queries grow": ("ministral3", {"head_dim": 8, "rope_parameters": GROWING}, ("attention.growth = config.growth",)),
    "rotary_dim": ("minimax_m2", {**EXPERTS, "head_dim": 8, "rotary_dim": 4}, ('fields.size("rotary_dim", 4)',)),
    "norms with a bias": ("persimmon", {"num_key_value_heads": 6}, ('fields.only("qk_layernorm", True)',)),
    "length of the trained context": ("phi3", {}, ('fields.optional("original_max_position_embeddings", int)',)),
    "bias of the head": ("phi", {}, ('Linear("out:vocab in:m"', "ParallelLayer(")),
    "shared MLP": ("hunyuan_v1_moe", {"head_dim": 8, "num_experts": 4, "moe_topk": 2}, ("SharedMLP(",)),
    "shared MLP of a layer": (
        "granitemoeshared", {"num_local_experts": 4, **SCALES, "shared_intermediate_size": 40},
        ("SharedMLP(", "config.shared_ffn"),
    ),
    "softmax with a bias": (
        "ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1},
        ("SoftmaxRouter(", "config.least"),
    ),
    "sinks, biases of experts": (
        "gpt_oss", {**EXPERTS, "head_dim": 8, "sliding_window": 32}, ("sinks=True", "ClampedExperts(", "bias=True)"),
    ),
    "gates of attention": (
        "afmoe", {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1,
            "num_dense_layers": 1, "head_dim": 8, "sliding_window": 32, "num_hidden_layers": 4, "route_scale": 1.5,
        },
        ("attention.gate_proj = Linear(", "self.gate_proj(x_Nm).sigmoid()", 'fields.get("route_scale", float'),
    ),
    "a theta for each layer": (
        "granite_swa", {**SCALES, "sliding_window": 32, "layer_rope_theta": [0, 5000.0]},
        ("attention.rotates = config.rotated[index]", 'common["rope"] = replace('),
    ),
    "factors around norms": (
        "hyperclovax", {
            "residual_multiplier": 0.22, "logits_scaling": 0.5, "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2, "head_dim": 8,
        },
        ("residual=config.residual_scale", 'norms="around"', "* self.config.logit_scale"),
    ),
    "factors by depth and by quotients": (
        "minicpm3", {**LATENT, "scale_emb": 3.0, "scale_depth": 1.1, "dim_model_base": 24, "pad_token_id": None},
        ("LatentAttention(", "interleaved=False", "/ layers**0.5", 'fields.positive("dim_model_base", 256.0)'),
    ),
    "latents in pairs, a factor of experts": (
        "deepseek_v2", {**LATENT, **ROUTED, "routed_scaling_factor": 1.5, "topk_method": "greedy"},
        ("interleaved=True", "mlp.factor = config.expert_factor", "SharedMLP(ScaledMLP)"),
    ),
    # transformers sets the row of the padding token to zero when it loads this model
    "latents": ("youtu", {**LATENT, "pad_token_id": None}, ("LatentAttention(", "yarn_scale(")),
    "latents, experts": ("glm4_moe_lite", {**LATENT, **ROUTED}, ("LatentAttention(", "config.routing)")),
    "latents, plain queries": (
        "deepseek_v3", {**LATENT, **ROUTED, "q_lora_rank": None, "rope_parameters": YARN},
        ("LatentAttention(",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_question_remains(name: str, tmp_path: Path) -> None:
    found, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_complete(found)
    for word in CASES[name][2]:
        assert word in found.files[f"{found.name}_graph.py"]
    assert_fits(model, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    _, model, source = drafted_with(*CASES[name][:2], tmp_path)
    assert_same_logits(model, source)


@pytest.mark.parametrize(
    ("name", "word", "text"),
    [
        ("norms before the last matrices", "ffn_sub_norm", "applies the norm `ffn_sub_norm`"),
        ("sinks, biases of experts", "sinks", "whether there are sinks"),
        ("gates of attention", "self_attn.gate_proj", "the sigmoid of a projection of the input"),
    ],
)
def test_code_without_its_tensors_is_a_question(name: str, word: str, text: str, tmp_path: Path) -> None:
    _, _, source = drafted_with(*CASES[name][:2], tmp_path)
    tensors = load_file(source / "model.safetensors")
    save_file({key: array for key, array in tensors.items() if word not in key}, source / "model.safetensors")
    found = draft(open_checkpoint(source, headers_only=True))
    assert any(text in each.text for each in found.questions)


def test_rotary_dim_that_the_fraction_contradicts(tmp_path: Path) -> None:
    """transformers obeys the fraction: what the other key changes is a question."""
    _, _, source = drafted_with(*CASES["rotary_dim"][:2], tmp_path)
    raw = json.loads((source / "config.json").read_text())
    assert raw["rope_parameters"]["partial_rotary_factor"] == 0.5
    (source / "config.json").write_text(json.dumps(raw | {"rotary_dim": 2}))
    found = draft(open_checkpoint(source, headers_only=True))
    assert any(each.text.startswith("`rotary_dim` is 2") for each in found.questions)


CODE = """
class NewAttention:
    def __init__(self, config, layer_idx):
        self.scaling = self.head_dim**-0.5

    def forward(self, hidden_states, position_embeddings):
        BEFORE
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        AFTER
        attn_output, _ = attention_interface(self, query_states, key_states, value_states, None, scaling=self.scaling)
        return self.o_proj(attn_output)


class NewForCausalLM:
    def __init__(self, config):
        self.attention = NewAttention(config, 0)

    def forward(self, input_ids):
        return self.attention(input_ids)
"""
CLIPS = "\n        ".join(f"{x}_states.clamp_(min=-config.limit, max=config.limit)" for x in ("query", "key", "value"))


@pytest.mark.parametrize(
    ("before", "after", "clip"),
    [(CLIPS, "pass", "limit"), ("pass", CLIPS, ""), (CLIPS.partition("\n")[0], "pass", "")],
)
def test_where_queries_are_clipped(before: str, after: str, clip: str, tmp_path: Path) -> None:
    """All three before rope; otherwise the statements are unexplained."""
    file = tmp_path / "modeling_new.py"
    file.write_text(CODE.replace("BEFORE", before).replace("AFTER", after))
    meaning = meaning_of(parts_of(file, "NewForCausalLM", {}))
    assert meaning.clip == clip
    assert bool(meaning.unexplained) == (clip == "")
