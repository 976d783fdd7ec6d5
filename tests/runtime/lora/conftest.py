"""Base models with LoRAs, and their bundles, for the tests of this folder. Each is written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from bringup.compile.job import Job, open_job
from bringup.compile.lora.limits import with_slots
from bringup.compile.pipeline import build
from tests.runtime.lora.bases import BUCKET, CONTEXT, Base, save

RANK, SLOTS, SEQUENCES = 8, 3, 4  # fewer slots and sequences than LoRAs and requests: they are used in turns


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    """The base of a name, with its LoRAs."""
    return cache(lambda name: save(tmp_path_factory.mktemp(f"{name}-loras"), name))


@pytest.fixture(scope="session")
def llama(bases: Callable[[str], Base]) -> Base:
    return bases("llama")


@pytest.fixture(scope="session")
def gpt2(bases: Callable[[str], Base]) -> Base:
    return bases("gpt2")


def with_every_slot(job: Job, rank: int = RANK) -> Job:
    """The job, with slots in every linear layer, experts, the embedding and the head."""
    ends = "lm_head", "wte" if job.family.name == "gpt2" else "embed_tokens"
    return with_slots(job, rank=rank, modules=("all-linear", *ends), count=SLOTS)


def compiled(job: Job, out: Path, target: str, *, sequences: int = 1) -> Path:
    """The bundle of a job with slots, at `out`."""
    return build(
        job, out=out, target=target, max_seq_len=CONTEXT, buckets=(BUCKET,), max_batch_size=sequences, all_logits=True
    )


@pytest.fixture(scope="session")
def bundle(llama: Base) -> Path:
    """Of the Llama, on torch, for several sequences."""
    job = with_every_slot(open_job(None, llama.folder))
    return compiled(job, llama.folder.parent / "batch", "torch", sequences=SEQUENCES)
