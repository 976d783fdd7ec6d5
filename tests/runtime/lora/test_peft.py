"""Logits with a LoRA are peft's; without one, those of transformers. float32."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.job import open_job
from bringup.compile.runtime.session import load
from tests.models.parity import TOLERANCE
from tests.runtime.lora.bases import LORAS, prompts
from tests.runtime.lora.conftest import RANK, compiled, with_every_slot

NEAR = 1e-5  # on torch: sums in another order
RANKS = {"qwen3": 64}
CASES = [
    ("llama", "torch"),
    ("llama", "llvm"),
    *(
        pytest.param(name, target, marks=pytest.mark.slow)
        for name, targets in {
            "llama": ("schedule", "iree-cpu"),
            "qwen3": ("torch",),
            "gpt2": ("torch", "schedule", "llvm"),
            "mixtral": ("torch", "llvm"),
            "deepseek_v3": ("torch", "schedule", "llvm", "cuda:sm_90"),
        }.items()
        for target in targets
    ),
]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_logits_are_pefts(name, target, bases):
    base = bases(name)
    job = with_every_slot(open_job(None, base.folder), RANKS.get(name, RANK))
    bundle = compiled(job, base.folder.parent / target, target)
    session = load(bundle, "emulate" if target.startswith("cuda") else None)
    (tokens,) = prompts(1, seed=8)
    alone, got_alone = base.logits(None, tokens), session.prefill(tokens)
    near = NEAR if target != "iree-cpu" else TOLERANCE["float32"] * np.abs(alone).max()
    assert np.abs(got_alone - alone).max() < near
    for lora in LORAS[name]:
        session.use_lora(lora, session.read_lora(base.loras[lora]))
        wanted = base.logits(lora, tokens)
        changed = np.abs(wanted - alone).max()
        assert changed > 100 * near, f"the LoRA {lora} changes logits by {changed} only"
        got = np.concatenate([session.prefill(tokens[:-2]), *(session.decode(token)[None] for token in tokens[-2:])])
        assert np.abs((got - got_alone) - (wanted - alone)).max() < near, lora
    session.use_lora(next(iter(LORAS[name])))  # by its id alone: it was sent before
    assert np.abs(session.prefill(tokens) - base.logits(next(iter(LORAS[name])), tokens)).max() < near
    session.use_lora(-1)
    np.testing.assert_array_equal(session.prefill(tokens), got_alone)
    figures = session.loras.figures()
    assert figures.host.misses == len(LORAS[name])
    assert figures.device.evictions == max(len(LORAS[name]) + (len(LORAS[name]) > 3) - 3, 0)
