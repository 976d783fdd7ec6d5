"""Weights in few bits on the target `llvm`: the logits of `torch` from the same packed weights, as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import Job, open_job
from bringup.compile.llvm.executor import LlvmExecutor
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from tests.models import parity
from tests.quantised import formats, int4_formats
from tests.quantised.checkpoints import write

NEAR = 1e-5  # largest |difference| over largest |logit| in float32: sums in another order
FORMATS = {**int4_formats.FORMATS, **formats.FORMATS}
FAST = ("awq",)
CASES = {
    "awq": "llama of words",
    "gptq symmetric by activations": "gpt_neox of words",
    "fp8-tensor": "phi3",
    "quark-mxfp4": "llama",
    "nf4": "llama of words",
    "gptq": "mixtral of words",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES])
def test_logits(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Prompts of many tokens and of few, and decode."""
    checkpoint, _ = write(CASES[name], FORMATS[name], tmp_path)
    job = open_job(checkpoint=str(checkpoint))
    wanted, found = (_logits(job, target, tmp_path) for target in ("torch", "llvm"))
    worst = max(abs(ours - theirs).max() / abs(theirs).max() for ours, theirs in zip(found, wanted, strict=True))
    record_property("parity", f"{name} llvm: {worst:.1e}")
    assert worst <= NEAR


def _logits(job: Job, target: str, folder: Path) -> list[np.ndarray]:
    tokens = parity.random_tokens(24, job.graph.config.vocab_size)
    out = folder / target
    bundle = build(job, out=out, target=target, weights_form="packed", max_seq_len=48, buckets=(4, 16))
    assert read_manifest(bundle)["weights_form"] == "packed"
    session = load(bundle)
    assert isinstance(session.executor, LlvmExecutor) is (target == "llvm")
    found = [session.prefill(tokens[:15]), *(session.decode(token) for token in tokens[15:18])]
    session.reset()
    return [*found, session.prefill(tokens[18:22])]
