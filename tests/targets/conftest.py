"""Bundles that several test files open."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from tests.schedule.models import CONTEXT, PREFILL, job_of


@pytest.fixture(scope="session")
def gpu_bundle(tmp_path_factory) -> Path:
    """Tiny GPT-2 in float32 for sm_90."""
    folder = tmp_path_factory.mktemp("gpt2")
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    return build(job_of("gpt2", folder), out=folder / "b", target="cuda:sm_90", **settings)


@pytest.fixture(scope="session")
def batch_bundle(tmp_path_factory) -> Path:
    """Tiny GPT-2 in float32 for sm_80: up to four sequences, caches of four blocks, which hold two long ones."""
    folder = tmp_path_factory.mktemp("batches")
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4, "cache_blocks": 4}
    return build(job_of("gpt2", folder), out=folder / "b", target="cuda:sm_80", **settings)
