"""Caches that are rings, in a batch: prompts longer than the window, of several sequences in one step."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import MistralConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.models import parity
from tests.schedule.models import COMMON, CONTEXT, PREFILL, VOCAB

WINDOW = 17
PROMPTS = ([(5 * at + 1) % VOCAB for at in range(WINDOW + 9)], [3, 1, 4], [(7 * at) % VOCAB for at in range(WINDOW)])
NEW = 6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Tiny Mistral for sm_90, whose rings are shorter than the context."""
    folder = tmp_path_factory.mktemp("mistral")
    heads = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MistralConfig(**COMMON, **heads, sliding_window=WINDOW)
    job = open_job(checkpoint=str(parity.save_checkpoint(config, folder / "checkpoint")))
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 2}
    return build(job, out=folder / "b", target="cuda:sm_90", **settings)


def answers_of(batch: Batch) -> list[list[int]]:
    found = {batch.add(Request(prompt, max_new_tokens=NEW)): [] for prompt in PROMPTS}
    while batch:
        for event in batch.step():
            found[event.id].append(event.token)
    return list(found.values())


@pytest.mark.slow
def test_tokens_are_those_of_single_runs(bundle: Path) -> None:
    alone = load(bundle, "reference")
    wanted = [list(alone.generate(prompt, max_new_tokens=NEW)) for prompt in PROMPTS]
    assert answers_of(load_batch(bundle, "emulate")) == wanted
