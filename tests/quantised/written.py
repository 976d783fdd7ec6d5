"""Tiny checkpoints of a model in a quantiser's format, and the same model with the weights that these stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from transformers import (
    DeepseekV3Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from tests.models import parity
from tests.quantised import packed
from tests.quantised.packed import Tensors

Convert = Callable[[np.ndarray], tuple[Tensors, np.ndarray]]

SIZES: dict[str, Any] = {"vocab_size": 61, "max_position_embeddings": 256, "hidden_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
# Sizes are multiples of 32, as GPTQ needs them.
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, **HEADS, intermediate_size=96),
    "phi3": Phi3Config(**SIZES, **HEADS, intermediate_size=96, pad_token_id=None),
    "gpt_neox": GPTNeoXConfig(**SIZES, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96),
    "mixtral": MixtralConfig(**SIZES, **HEADS, intermediate_size=96, num_local_experts=3, num_experts_per_tok=2),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, **HEADS, intermediate_size=96, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16
    ),
    "deepseek_v3": DeepseekV3Config(
        **SIZES, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=96,
        moe_intermediate_size=32, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        n_group=2, topk_group=1, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=32, v_head_dim=16,
    ),
}  # fmt: skip
PLAIN = ("norm", "embed", "lm_head", "mlp.gate.weight", "block_sparse_moe.gate", "correction_bias")


@dataclass(frozen=True)
class Format:
    """`words` are its `quantization_config`, `convert` gives a matrix as it stores it."""

    words: Mapping[str, Any]
    convert: Convert


def awq(group: int = 32) -> Format:
    words = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Format(words, partial(packed.awq, group=group))


def gptq(bits: int = 4, group: int = 32, *, sym: bool = False, act_order: bool = False, version: int = 1) -> Format:
    words: dict[str, Any] = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": act_order,
        "damp_percent": 0.01, "true_sequential": True,
    }  # fmt: skip
    if version == 2:
        words["checkpoint_format"] = "gptq_v2"
    return Format(words, partial(packed.gptq, bits=bits, group=group, sym=sym, act_order=act_order, version=version))


def int8() -> Format:
    words = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0}
    return Format(words, packed.int8)


def four_bits(kind: str = "nf4", block: int = 64, *, nested: bool = False) -> Format:
    words = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": "bfloat16", "llm_int8_skip_modules": None,
    }  # fmt: skip
    return Format(words, partial(packed.four_bits, kind=kind, block=block, nested=nested))


@dataclass(frozen=True)
class Written:
    """The folders of the quantised checkpoint and of the plain one, and the values of the matrices by name."""

    quantised: Path
    plain: Path
    values: Mapping[str, np.ndarray]


def is_converted(name: str, array: np.ndarray) -> bool:
    return name.endswith(".weight") and array.ndim == 2 and not any(part in name for part in PLAIN)


def write(config: PreTrainedConfig, form: Format, folder: Path) -> Written:
    """Both checkpoints of a seeded random model, in float32 but for what is quantised."""
    plain, quantised = folder / "plain", folder / "quantised"
    tensors = load_file(parity.save_checkpoint(config, plain) / "model.safetensors")
    stored, values = dict(tensors), dict[str, np.ndarray]()
    for name in [name for name, array in tensors.items() if is_converted(name, array)]:
        parts, values[name] = form.convert(tensors[name])
        del stored[name]
        stored |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in parts.items()}
    assert values
    save_file(tensors | values, plain / "model.safetensors", {"format": "pt"})
    raw = json.loads((plain / "config.json").read_text("utf-8"))
    save(quantised, stored, raw | {"quantization_config": dict(form.words)})
    return Written(quantised, plain, values)


def save(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder
