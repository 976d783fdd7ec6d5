"""Tiny models of transformers in a published format, and the same models dequantised."""

from __future__ import annotations

import json
from functools import cache
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
from tests.models.test_deepseek_v3 import save_biased
from tests.quantised.formats import Format

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 256}
# Widths of columns are whole groups of 32; of rows, that are none of words and blocks.
CASES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(
        **SIZES, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    ),
    "phi3": Phi3Config(
        **SIZES, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, hidden_size=64, moe_intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2,
    ),
    "deepseek_v3": DeepseekV3Config(
        **SIZES, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=32,
        kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, n_group=2,
        topk_group=1,
    ),
}  # fmt: skip


# Whole words of any width in all directions, and whole groups of 32.
WORDS: dict[str, Any] = {**SIZES, "hidden_size": 64, "num_attention_heads": 4}
WHOLE_WORDS: dict[str, PreTrainedConfig] = {
    "llama of words": LlamaConfig(**WORDS, intermediate_size=96, num_key_value_heads=2),
    "gpt_neox of words": GPTNeoXConfig(**WORDS, intermediate_size=96),
    "phi3 of words": Phi3Config(**WORDS, intermediate_size=96, num_key_value_heads=2, pad_token_id=0),
    "mixtral of words": MixtralConfig(
        **WORDS, intermediate_size=96, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2,
    ),
    "deepseek_v3 of words": DeepseekV3Config(
        **WORDS, intermediate_size=96, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=16,
        qk_rope_head_dim=32, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, moe_intermediate_size=32, n_group=2, topk_group=1,
    ),
}  # fmt: skip

# Wider than a block of 128 in all directions, and no multiple of it.
WIDE: dict[str, PreTrainedConfig] = {
    "llama wide": LlamaConfig(**SIZES, hidden_size=160, intermediate_size=192, num_attention_heads=4, head_dim=40),
    "phi3 wide": Phi3Config(
        **SIZES, hidden_size=160, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
    ),
    "qwen3_moe wide": Qwen3MoeConfig(
        **SIZES, hidden_size=160, moe_intermediate_size=136, num_attention_heads=4, num_key_value_heads=2, head_dim=40,
        num_experts=2, num_experts_per_tok=1,
    ),
    "deepseek_v3 wide": DeepseekV3Config(
        **SIZES, hidden_size=160, intermediate_size=192, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=144,
        kv_lora_rank=136, qk_nope_head_dim=32, qk_rope_head_dim=8, v_head_dim=40, first_k_dense_replace=1,
        n_routed_experts=2, num_experts_per_tok=1, n_shared_experts=1, moe_intermediate_size=136, n_group=1,
        topk_group=1,
    ),
}  # fmt: skip


def is_quantised(name: str, array: np.ndarray) -> bool:
    """Whether converters quantise a tensor: the matrix of a linear layer, but for heads and routers."""
    plain = ("norm", "embed", "lm_head", ".gate.weight")
    return array.ndim == 2 and name.endswith(".weight") and not any(part in name for part in plain)


@cache
def plain(family: str, folder: Path) -> Path:
    """The model as transformers saves it, in float32."""
    config = {**CASES, **WHOLE_WORDS, **WIDE}[family]
    return (save_biased if family.startswith("deepseek") else parity.save_checkpoint)(config, folder / family)


def write(family: str, form: Format, folder: Path) -> tuple[Path, Path]:
    """Two folders: the checkpoint in the format, and one of the values that it stands for."""
    source = plain(family, folder)
    tensors = load_file(source / "model.safetensors")
    exact, stored = dict(tensors), dict[str, np.ndarray]()
    for name, array in tensors.items():
        if not is_quantised(name, array):
            stored[name] = array
            continue
        parts, exact[name] = form.write(array)
        stem = name.removesuffix("weight")
        stored |= {f"{stem}{part}": np.array(value) for part, value in {**parts, **form.also}.items()}
    raw = json.loads((source / "config.json").read_text("utf-8"))
    places = folder / f"{family} quantised", folder / f"{family} exact"
    for place, held in zip(places, (stored, exact), strict=True):
        place.mkdir(exist_ok=True)
        save_file(held, place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text(json.dumps(raw), "utf-8")
        (place / "hf_quant_config.json").unlink(missing_ok=True)
    if form.words:
        (places[0] / "config.json").write_text(json.dumps(raw | {"quantization_config": form.words}), "utf-8")
    if form.sidecar:
        (places[0] / "hf_quant_config.json").write_text(json.dumps(form.sidecar), "utf-8")
    return places
