"""Prompts of more tokens than a tile of a product has rows, for which sm_90 has kernels with specialised warps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.kernel_trial import trial_of
from bringup.compile.runtime.session import load
from tests.models import parity
from tests.targets.test_gpu import NEAR

CONTEXT, PROMPT, VOCAB = 256, 150, 97
CONFIGS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=48, n_layer=1, n_head=3),
    "llama": LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, num_hidden_layers=1, hidden_size=64, intermediate_size=136,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    ),
}  # fmt: skip
ATTENTION = {"gpt2": "attention_prefill", "llama": "hopper.attention_specialised"}  # of 16 channels and of 64


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_longer_than_a_tile(name: str, tmp_path: Path) -> None:
    """Under all checks, then with the driver: the memory of tensor maps is that of all launches of a step."""
    job = open_job(checkpoint=str(parity.save_checkpoint(CONFIGS[name], tmp_path / "checkpoint", "bfloat16")))
    bundle = build(job, out=tmp_path / "b", target="cuda:sm_90", max_seq_len=CONTEXT, buckets=(192,))
    rows = trial_of(bundle, entries=["prefill_192"])
    assert {row.entry for row in rows} == {"prefill_192"}
    products = [row for row in rows if row.kernels == "hopper.linear_specialised"]
    assert len(products) == 4
    assert [finding for row in rows for finding in row.seen.findings] == []
    (attention,) = (row for row in rows if "attention" in row.kernels)
    assert attention.kernels == ATTENTION[name]
    assert max(row.error for row in (*products, attention)) < NEAR["bfloat16"]
    assert all(row.seen.written == row.cost.written for row in (*products, attention))
    tokens = parity.random_tokens(PROMPT + 2, VOCAB)
    found, wanted = (parity.run(load(bundle, executor), tokens, PROMPT) for executor in ("emulate", "reference"))
    assert np.abs(found - wanted).max() < NEAR["bfloat16"] * np.abs(wanted).max()
