"""Tiny base models written by transformers, LoRAs of them written by peft, and the logits of both."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3Config,
)  # fmt: skip

VOCABULARY, CONTEXT, BUCKET = 97, 128, 16
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
}  # fmt: skip
BASES: Mapping[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "deepseek_v3": DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4}, moe_intermediate_size=16, n_routed_experts=8, n_group=2, topk_group=1,
        num_experts_per_tok=2, q_lora_rank=16, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
        first_k_dense_replace=1,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    ),
}  # fmt: skip
# What a peft user would write: plain, of another rank, rank-stabilised, of single layers, with ranks by pattern.
LORAS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "llama": {
        "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        "one": {"r": 1, "lora_alpha": 3, "target_modules": ["o_proj", "down_proj"]},
        "stable": {"r": 8, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
        "layer": {"r": 2, "lora_alpha": 4, "target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1]},
        "mixed": {
            "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "gate_proj"],
            "rank_pattern": {"q_proj": 7}, "alpha_pattern": {"gate_proj": 2},
        },
    },
    "qwen3": {
        "wide": {"r": 64, "lora_alpha": 32, "target_modules": "all-linear"},
        "mixed": {
            "r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": r".*(q_proj|k_proj|o_proj|down_proj)",
            "rank_pattern": {"k_proj": 1, r"layers\.1\.mlp\.down_proj": 33},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 3},
        },
    },
    "mixtral": {
        "attention": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "o_proj"]},
        "experts": {
            "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"],
            "rank_pattern": {"mlp.experts.down_proj": 3},
        },
        "one by one": {"r": 2, "target_modules": ["w1", "w2", "w3"]},
        "ends": {"r": 5, "lora_alpha": 9, "target_modules": ["embed_tokens", "lm_head", "k_proj"]},
    },
    "deepseek_v3": {
        "latent": {
            "r": 8, "lora_alpha": 8,
            "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        },
        "ends": {
            "r": 3, "lora_alpha": 4, "use_rslora": True, "target_modules": ["kv_b_proj", "embed_tokens", "lm_head"],
        },
        "experts": {
            "r": 2, "lora_alpha": 4, "target_modules": ["gate_proj", "up_proj", "down_proj"],
            "target_parameters": ["mlp.gate.weight"],
        },
    },
    "gpt2": {
        "plain": {"r": 4, "lora_alpha": 6, "target_modules": ["c_attn"], "fan_in_fan_out": True},
        "all": {"r": 8, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    },
}  # fmt: skip
SPREAD = 0.3  # of random factors: a LoRA of this size changes logits of order 1 by as much


@dataclass(frozen=True)
class Base:
    """The folders of a base and of its LoRAs, by name."""

    folder: Path
    loras: Mapping[str, Path]

    def logits(self, lora: str | None, tokens: Sequence[int]) -> np.ndarray:
        """What transformers gives, with a LoRA what peft does: float32 [T, V]."""
        with torch.no_grad():
            return self._model(lora)(torch.tensor([tokens])).logits[0].numpy()

    def continued(self, lora: str | None, tokens: Sequence[int], count: int) -> list[int]:
        """The likeliest tokens after a prompt, each of logits that are computed from the first token."""
        model, taken = self._model(lora), list(tokens)
        for _ in range(count):
            with torch.no_grad():
                taken.append(int(model(torch.tensor([taken])).logits[0, -1].argmax()))
        return taken[len(tokens) :]

    def _model(self, lora: str | None) -> Any:
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        with pefts_warnings():
            return (model if lora is None else PeftModel.from_pretrained(model, self.loras[lora])).eval()


@contextmanager
def pefts_warnings() -> Iterator[None]:
    """Warnings are no errors in the block: peft reads names of transformers' models that are going away
    (https://github.com/huggingface/peft/blob/main/src/peft/peft_model.py, `is_gradient_checkpointing`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save(folder: Path, name: str) -> Base:
    """Writes a base and its LoRAs, seeded."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(BASES[name]).float().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder / "base")
    loras: dict[str, Path] = {}
    for lora, words in LORAS[name].items():
        plain = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
        with pefts_warnings():
            adapted = get_peft_model(plain, LoraConfig(**words))
        for parameter_name, parameter in adapted.named_parameters():
            if "lora_" in parameter_name:
                parameter.data.normal_(0, SPREAD)
        loras[lora] = folder / lora
        with pefts_warnings():  # that an embedding is saved too
            adapted.save_pretrained(loras[lora])
    return Base(folder / "base", loras)


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    """Random prompts of different lengths."""
    draw = np.random.default_rng(seed)
    return [draw.integers(1, VOCABULARY, size=int(draw.integers(3, 24))).tolist() for _ in range(count)]
