"""EAGLE-3 heads: parity with the published formulas, the layouts of their files, and faulty heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from tests.models import heads

SIZES: dict[str, Any] = {
    "vocab_size": 131, "max_position_embeddings": 256, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
    "architectures": ["LlamaForCausalLMEagle3"],
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "all-tokens": LlamaConfig(
        **SIZES, hidden_size=40, intermediate_size=52, num_attention_heads=5, num_key_value_heads=1,
    ),
    "few-tokens-llama3": LlamaConfig(
        **SIZES, hidden_size=32, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2,
        draft_vocab_size=37, rope_parameters=LLAMA3, norm_before_residual=True, norm_before_fc=True,
    ),
    "other-width-biases": LlamaConfig(
        **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=3, num_key_value_heads=3,
        draft_vocab_size=90, target_hidden_size=44, attention_bias=True, mlp_bias=True, fc_norm=True,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 4, 6], "use_aux_hidden_state": True},
    ),
    "qwen3-output-norm": Qwen3Config(
        **SIZES, hidden_size=30, intermediate_size=38, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        norm_output=True,
    ),
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> heads.Head:
    """A head of one of CASES, with the names of either form."""
    layer = "midlayer." if name in ("all-tokens", "other-width-biases") else "layers.0."
    checkpoint = heads.save(CASES[name], folder / "head", dtype, layer=layer)
    return heads.Head(checkpoint, checkpoint, "eagle3")
