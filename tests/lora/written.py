"""Adapters that peft writes for tiny models that transformers writes, with random factors, and peft's logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MiMoV2FlashConfig,
    MiniMaxM2Config,
    MixtralConfig,
    NemotronHConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)  # fmt: skip

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "eos_token_id": 1, "bos_token_id": 0,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 2,
    "topk_group": 1, "num_experts_per_tok": 2, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 1,
}  # fmt: skip
DELTA_NETS: dict[str, Any] = {
    "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6, "rms_norm_eps": 1e-3,
}  # fmt: skip
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 64,
    "n_positions": 64,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
NEOX = {
    key: SIZES[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
}
BASES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": lambda **more: LlamaConfig(**SIZES, **more),
    "qwen3": lambda **more: Qwen3Config(**SIZES, head_dim=8, **more),
    "mixtral": lambda **more: MixtralConfig(**SIZES, num_local_experts=4, **more),
    "qwen3_next": lambda **more: Qwen3NextConfig(
        **SIZES,
        **DELTA_NETS,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        **more,
    ),
    "qwen3_5": lambda **more: Qwen3_5TextConfig(**SIZES, **DELTA_NETS, **more),
    "qwen2_moe": lambda **more: Qwen2MoeConfig(
        **SIZES,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        **more,
    ),
    "gemma4": lambda **more: Gemma4TextConfig(
        **SIZES
        | {"head_dim": 8, "global_head_dim": 12, "sliding_window": 16, "rms_norm_eps": 0.1}
        | {"hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": 64}
        | more
    ),
    "gpt2": lambda **more: GPT2Config(**GPT2, **more),
    "deepseek_v3": lambda **more: DeepseekV3Config(**LATENT, **more),
    "mimo_v2_flash": lambda **more: MiMoV2FlashConfig(
        **SIZES | {"num_key_value_heads": 1},
        head_dim=8,
        v_head_dim=6,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        **more,
    ),
    "minimax_m2": lambda **more: MiniMaxM2Config(
        **SIZES, head_dim=8, rotary_dim=4, num_local_experts=4, num_experts_per_tok=2, **more
    ),
    "phi3": lambda **more: Phi3Config(**SIZES, pad_token_id=0, **more),
    "lfm2": lambda **more: Lfm2Config(**SIZES, layer_types=["conv", "full_attention"], block_multiple_of=2, **more),
    "granitemoehybrid": lambda **more: GraniteMoeHybridConfig(
        **SIZES,
        layer_types=["mamba", "attention"],
        mamba_n_heads=4,
        mamba_d_state=8,
        mamba_n_groups=2,
        num_local_experts=4,
        shared_intermediate_size=24,
        **more,
    ),
    "nemotron_h": lambda **more: NemotronHConfig(
        **{key: size for key, size in SIZES.items() if key != "num_hidden_layers"},
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
        head_dim=8,
        mamba_num_heads=4,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=8,
        n_routed_experts=4,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=24,
        **more,
    ),
    "gpt_neox": lambda **more: GPTNeoXConfig(**NEOX, eos_token_id=1, bos_token_id=0, **more),
}
TOKENS = list(range(3, 27))


@dataclass(frozen=True)
class Case:
    """A base, and the words of peft's LoraConfig."""

    base: str
    words: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """Folders of the base and of the adapter; peft's logits [T, V] with the adapter, and the base's."""

    base: Path
    lora: Path
    logits: np.ndarray
    plain: np.ndarray


def write(case: Case, folder: Path, *, deviation: float = 0.3) -> Written:
    """What peft saves, with factors that are drawn anew: B is zero before training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's own
        model = saved_base(case, folder / "base")
        peft = wrapped(model, case, deviation)
        peft.save_pretrained(folder / "lora")
        with torch.no_grad():
            given = torch.tensor([TOKENS])
            logits = peft(given).logits[0].numpy()
            with peft.disable_adapter():
                plain = peft(given).logits[0].numpy()
    return Written(folder / "base", folder / "lora", logits, plain)


def saved_base(case: Case, folder: Path) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(BASES[case.base](**case.more)).eval()
    model.save_pretrained(folder)
    return model


def wrapped(model: Any, case: Case, deviation: float) -> Any:
    import peft  # 2 s

    found = peft.get_peft_model(model, peft.LoraConfig(**case.words)).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in found.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * deviation)  # some share memory
    return found
