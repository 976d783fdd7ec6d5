from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.check.drafts import CONFIGS, FUSED, GPT2, LLAMA, MIXTRAL, Draft, Family, read_draft, tiny

DRAFTS = {
    "gpt2": lambda: full_size(GPT2),
    "gpt2-bare": lambda: full_size(GPT2).bare(),
    "llama": lambda: full_size(LLAMA),
    "mixtral": lambda: small(MIXTRAL),
    "fused": lambda: small(FUSED),
}
# published sizes: GPT-2 small, Llama 2 7B
SIZES = {
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}


@cache
def full_size(family: Family) -> Draft:
    """Names and shapes as transformers has them, at published sizes: of families that it saves as it holds them."""
    import torch
    from transformers import AutoModelForCausalLM

    config = type(CONFIGS[family.name]())(**SIZES[family.name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    zero = np.zeros((), np.float32)
    tensors = {
        name: np.broadcast_to(zero, tuple(tensor.shape))
        for name, tensor in model.state_dict().items()
        if not (config.tie_word_embeddings and name == "lm_head.weight")
    }
    words = config.to_dict() | {"architectures": [type(model).__name__]}
    return Draft(family, words, tensors)


@cache
def small(family: Family) -> Draft:
    """What transformers' `save_pretrained` wrote."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_draft(tiny(family, Path(folder)), family)


@pytest.fixture
def draft(request: pytest.FixtureRequest) -> Draft:
    create: Callable[[], Draft] = DRAFTS[request.param]
    return create().copy()
