"""llama.cpp itself, next to transformers: the tokens of two sequences of a GGUF file that gguf's writer made."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaConfig

from bringup.compile.bench.contenders import LLAMA_CPP, opened
from bringup.diagnostics import BringupError
from tests.adapters import llama_cpp
from tests.adapters.test_dialects import words
from tests.models import parity

pytest.importorskip("xllamacpp")

NEW = 6
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = LlamaConfig(vocab_size=61, num_hidden_layers=2, max_position_embeddings=64, **SIZES)


def without_tokenizer(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
    """`TextModel.set_vocab` of a converter without one."""
    words(writer, config)
    writer.add_tokenizer_model("none")


def test_the_tokens_of_transformers(tmp_path: Path) -> None:
    """Two runs, as nothing may stay of the first; the second prompt begins as the first does."""
    folder = parity.save_checkpoint(CONFIG, tmp_path / "transformers")
    file = llama_cpp.convert(
        folder, tmp_path / "m.gguf", gguf.MODEL_ARCH.LLAMA, tensors=llama_cpp.all_in_pairs, words=without_tokenizer
    )
    settings = {"bundle": "", "gguf": str(file), "batch": 2, "length": 5 + NEW, "threads": 1}
    engine = opened(LLAMA_CPP, settings)
    prompts = [[3, 1, 4, 1, 5], [3, 1, 9, 2, 6]]
    ids = torch.tensor(prompts)
    wanted = parity.load_reference(folder).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    for _ in range(2):
        timing = engine.run(prompts, NEW)
        assert timing.tokens == wanted[:, 5:].tolist()
        assert min(timing.gaps) > 0
        assert timing.processor > 0
    assert engine.dtype == "llama ?B all F32"
    with pytest.raises(BringupError, match="does not open"):
        opened(LLAMA_CPP, {**settings, "gguf": str(folder / "config.json")})
