"""What every page's example finds in its folder: `gpt2/` and `llama/`, small checkpoints as transformers saves them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("workshop")
    torch.manual_seed(0)
    gpt2 = GPT2Config(vocab_size=96, n_layer=2, n_embd=64, n_head=4, n_positions=64)
    llama = LlamaConfig(
        vocab_size=96, num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    GPT2LMHeadModel(gpt2).save_pretrained(folder / "gpt2")
    LlamaForCausalLM(llama).save_pretrained(folder / "llama")
    return folder
