"""Checkpoints of which only the headers are real: sparse safetensors files in a published layout."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

Shapes = dict[str, tuple[int, ...]]


def gpt2_config(layers: int = 12, hidden: int = 768, vocab: int = 50257, positions: int = 1024) -> dict[str, object]:
    """openai-community/gpt2's config.json, at the sizes asked for."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": layers,
        "n_head": hidden // 64,
        "n_embd": hidden,
        "n_positions": positions,
        "vocab_size": vocab,
    }


def gpt2_shapes(layers: int = 12, hidden: int = 768, vocab: int = 50257, positions: int = 1024) -> Shapes:
    """The tensors of openai-community/gpt2: Conv1D matrices [in, out], causal masks, no lm_head."""
    vectors = {"weight": (hidden,), "bias": (hidden,)}
    shapes: Shapes = {"wte.weight": (vocab, hidden), "wpe.weight": (positions, hidden)}
    for layer in range(layers):
        at = f"h.{layer}"
        shapes[f"{at}.attn.bias"] = (1, 1, positions, positions)
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{at}.{norm}.{part}": shape for part, shape in vectors.items()}
        for name, n_in, n_out in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, 4 * hidden),
            ("mlp.c_proj", 4 * hidden, hidden),
        ):
            shapes |= {f"{at}.{name}.weight": (n_in, n_out), f"{at}.{name}.bias": (n_out,)}
    return shapes | {f"ln_f.{part}": shape for part, shape in vectors.items()}


def write_checkpoint(folder: Path, shapes: Shapes, config: dict[str, object]) -> Path:
    """A folder with config.json and a sparse model.safetensors of float32 tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def write_gguf(path: Path) -> Path:
    """A llama of one layer, written by llama.cpp's own library; its embedding is in q8_0, its head tied."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    m, f, heads, groups, vocab = 64, 96, 4, 2, 96
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(m)
    writer.add_block_count(1)
    writer.add_feed_forward_length(f)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", quantize(np.zeros((vocab, m), np.float32), kind), raw_dtype=kind)
    rows = {"attn_q": (m, m), "attn_k": (m // 2, m), "attn_v": (m // 2, m), "attn_output": (m, m)}
    rows |= {"ffn_gate": (f, m), "ffn_up": (f, m), "ffn_down": (m, f), "attn_norm": (m,), "ffn_norm": (m,)}
    for name, shape in {
        "output_norm": (m,),
        **{f"blk.0.{name}": shape for name, shape in rows.items()},
    }.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _product(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
