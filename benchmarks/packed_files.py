"""A GGUF file of a Llama whose matrices, embedding and head are random Q4_1 blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TYPE = gguf.GGMLQuantizationType.Q4_1
WIDTH = 32  # numbers of a block: a scale, a minimum, both float16, and 16 bytes (ggml-common.h, block_q4_1)


def write_gguf(path: Path, config: Mapping[str, Any]) -> Path:
    """Numbers of about 1 / sqrt(columns), from the words of a Llama's config.json."""
    m, f, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    groups = config["num_key_value_heads"] * m // heads
    draw = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(m)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(f)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    shapes = {"attn_q": (m, m), "attn_k": (groups, m), "attn_v": (groups, m), "attn_output": (m, m)}
    shapes |= {"ffn_gate": (f, m), "ffn_up": (f, m), "ffn_down": (m, f)}
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", _blocks(draw, config["vocab_size"], m), raw_dtype=TYPE)
    writer.add_tensor("output_norm.weight", np.ones(m, np.float32))
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", _blocks(draw, *shape), raw_dtype=TYPE)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(m, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _blocks(draw: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """uint8 [rows, bytes of the row's blocks]."""
    blocks = draw.integers(0, 256, (rows, columns // WIDTH, 20), np.uint8)
    step = 0.2 / columns**0.5
    blocks[..., :4] = np.array([step, -7.5 * step], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)
