"""The models that are checked and timed, as configs of transformers. All weights are random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TINY: dict[str, Any] = {"vocab_size": 97, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
SMALL: dict[str, Any] = {"vocab_size": 4099, "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 2816}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE_HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2}
LENGTH: dict[str, Any] = {"max_position_embeddings": 1024}
GPT2: dict[str, Any] = {"n_positions": 1024, "n_layer": 2}
LLAMA_3: dict[str, Any] = {
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A config of transformers: `kind` is its model type, `settings` what is not its default.

    `longest`: tokens of the longest prompt that can be compared; None for any.
    """

    name: str
    kind: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    longest: int | None = None


@dataclass(frozen=True, kw_only=True)
class Row(Model):
    """A model that is timed in bfloat16: `prompt` tokens, then decode. `goal` is microseconds a token on an H200."""

    prompt: int = 128
    goal: float
    compiled: bool = True


DEEPSEEK: dict[str, Any] = {
    **{"vocab_size": 521, "max_position_embeddings": 1024, "hidden_size": 256, "intermediate_size": 320},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 96},
    **{"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
    **{"first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    **{"moe_intermediate_size": 64, "n_group": 2, "topk_group": 1},
}
# Products with and without bias, norms, rope, windows, sinks, experts, ALiBi, MLA, the indexer of V3.2. Not float16.
CHECKED = (
    Model(name="GPT-2", kind="gpt2", settings=GPT2 | {"vocab_size": 4099, "n_embd": 768, "n_head": 12}),
    Model(name="Llama", kind="llama", settings=SMALL | WIDE_HEADS | LENGTH),
    Model(name="Qwen3", kind="qwen3", settings=SMALL | WIDE_HEADS | LENGTH | {"head_dim": 128}),
    Model(name="Mistral", kind="mistral", settings=SMALL | WIDE_HEADS | LENGTH | {"sliding_window": 31}),
    Model(name="GPT-NeoX", kind="gpt_neox", settings=SMALL | LENGTH | {"num_attention_heads": 8}),
    Model(name="BLOOM", kind="bloom", settings={"vocab_size": 4099, "hidden_size": 1024, "n_layer": 2, "n_head": 8}),
    Model(
        name="gpt-oss",
        kind="gpt_oss",
        settings=SMALL | WIDE_HEADS | LENGTH | {"head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    Model(name="DeepSeek-V2", kind="deepseek_v2", settings=DEEPSEEK | {"topk_method": "group_limited_greedy"}),
    Model(name="DeepSeek-V3", kind="deepseek_v3", settings=DEEPSEEK),
    Model(
        name="DeepSeek-V3.2",
        kind="deepseek_v32",
        # 64 of up to 72 keys are kept. With 4 heads some scores at that boundary are 0 alike: negative products of all
        # heads. Which of such keys are taken, transformers leaves open. With 16 heads there are none.
        settings=DEEPSEEK | {"index_n_heads": 16, "index_head_dim": 32, "index_topk": 64},
        longest=32,
    ),
)
# What `--dry-run` checks.
DRY = (
    Model(name="GPT-2", kind="gpt2", settings=GPT2 | {"vocab_size": 97, "n_embd": 24, "n_head": 3}),
    Model(name="Llama", kind="llama", settings=TINY | HEADS | LENGTH),
)
TIMED = (
    Row(name="GPT-2 124M", kind="gpt2", goal=160),
    Row(name="GPT-2 124M, context 896", kind="gpt2", prompt=896 - 64, goal=175, compiled=False),
    Row(
        name="Llama-3.2-1B",
        kind="llama",
        goal=730,
        settings=LLAMA_3
        | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"head_dim": 64, "tie_word_embeddings": True},
    ),
    Row(
        name="Llama-3-8B",
        kind="llama",
        goal=3920,
        settings=LLAMA_3
        | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
    ),
    Row(
        name="Qwen3-0.6B",
        kind="qwen3",
        goal=510,
        compiled=False,
        settings={"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
        | {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    ),
)
PREFILL = Row(name="Llama-3-8B, prefill of 2048", kind="llama", prompt=2048, goal=50_000, settings=TIMED[3].settings)


def save(model: Model, folder: str, dtype: str, device: str) -> None:
    """Random weights (normal, deviation 0.02; norms near 1) as `save_pretrained` writes them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(model.kind, **model.settings)
    with torch.device(device):
        created = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    for name, parameter in created.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name or ".ln_" in name else 0.0, 0.02)
    created.save_pretrained(folder)
