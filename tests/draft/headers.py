"""A checkpoint of Llama's shape with headers only, and with any text in its names and its config."""

from __future__ import annotations

import math
from typing import Any

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.spec import TensorInfo

CONFIG: dict[str, Any] = {
    "model_type": "newmodel", "architectures": ["NewForCausalLM"], "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 32,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = "model.layers.0."


def shapes(m: int = 16, f: int = 24, vocab: int = 32) -> dict[str, tuple[int, ...]]:
    """Names and shapes."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, m), "model.norm.weight": (m,)}
    found |= {f"{LAYER}self_attn.{x}_proj.weight": (m, m) for x in "qkvo"}
    found |= {f"{LAYER}mlp.{x}_proj.weight": (f, m) for x in ("gate", "up")} | {f"{LAYER}mlp.down_proj.weight": (m, f)}
    found |= {f"{LAYER}{x}_layernorm.weight": (m,) for x in ("input", "post_attention")}
    return found | {"lm_head.weight": (vocab, m)}


def checkpoint(found: dict[str, tuple[int, ...]], source: str = "dict", /, **config: Any) -> Checkpoint:
    """The headers, and CONFIG with other words."""

    def read(info: TensorInfo) -> Any:
        raise AssertionError("a draft reads no weights")

    headers = {name: TensorInfo(name, "float32", shape, nbytes=4 * math.prod(shape)) for name, shape in found.items()}
    return Checkpoint(source=source, format="dict", headers=headers, config=CONFIG | config, read=read)
