"""A small config.json of each family, or that of its flagship (tests/flagships/configs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bringup.graphs.gpt2 import SIZES

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 128},
}  # fmt: skip
PLAIN = {key: value for key, value in LLAMA.items() if key not in ("rope_scaling", "hidden_act")}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
SMALL: list[dict[str, Any]] = [
    SIZES["gpt2"],
    SIZES["gpt2"] | {"n_inner": 64},
    LLAMA,
    LLAMA | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16, "head_dim": 32,
        "layer_types": ["full_attention", "sliding_attention"], "rope_scaling": {"type": "linear", "factor": 2},
    },
    PLAIN | {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16,
        "max_window_layers": 1, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    PLAIN | {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 128, "sliding_window": 16, "partial_rotary_factor": 1.0,
    },
    PLAIN | {"architectures": ["InternLMForCausalLM"], "model_type": "internlm", "bias": True, "rope_theta": 10000},
    {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "rotary_pct": 0.25, "hidden_act": "gelu",
        "max_position_embeddings": 256, "layer_norm_eps": 1e-5, "use_parallel_residual": True,
    },
    {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": 64, "intermediate_size": 192,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100, "kv_channels": 16, "seq_length": 256,
        "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "rotary_pct": 1.0, "no_bias": True,
    },
    {
        "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu",
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_layers": 2, "max_position_embeddings": 256,
        "layer_norm_epsilon": 1e-5, "rope_theta": 10000,
    },
    {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": LLAMA,
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 64},
    },
]  # fmt: skip
FLAGSHIPS = Path(__file__).parents[2] / "tests/flagships/configs"
CONFIGS = [json.dumps(raw).encode() for raw in SMALL] + [path.read_bytes() for path in sorted(FLAGSHIPS.glob("*.json"))]
