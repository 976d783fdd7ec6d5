"""The files that the example of every page finds in its folder: small checkpoints and an adapter.

`gpt2/` and `llama/` are saved by transformers; `lora/` is an adapter of llama, saved by peft.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file


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
    _write_adapter(folder / "lora")
    return folder


def _write_adapter(folder: Path) -> None:
    """Rank 4 on q and v of both layers."""
    folder.mkdir()
    random = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(2):
        for x, out in (("q", 64), ("v", 32)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{x}_proj.lora_"
            tensors[f"{stem}A.weight"] = random.standard_normal((4, 64)).astype(np.float32)
            tensors[f"{stem}B.weight"] = random.standard_normal((out, 4)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    words = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(words))
