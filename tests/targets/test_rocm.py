"""Targets `rocm:…`: a bundle of AMD's machine code, whose schedule the reference runs."""

from __future__ import annotations

import json
from pathlib import Path

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from tests.schedule.models import CONTEXT, PREFILL, job_of

PROMPTS = ([1, 2, 3], list(range(14, 34)))
NEW = 6


def test_the_reference_gives_the_tokens_of_a_bundle_for_cuda(gpu_bundle: Path, tmp_path: Path) -> None:
    """Of the same model; tests/targets/test_gpu.py compares those with torch's."""
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    folder = build(job_of("gpt2", tmp_path), out=tmp_path / "r", target="rocm:gfx942", **settings)
    ours, wanted = load(folder, "reference"), load(gpu_bundle, "reference")
    for prompt in PROMPTS:
        answers = [list(session.generate(prompt, max_new_tokens=NEW)) for session in (ours, wanted)]
        assert answers[0] == answers[1]
        ours.reset()
        wanted.reset()
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    binaries = {file.name: file.read_bytes() for file in (folder / "hsaco").iterdir()}
    assert set(binaries) == {f"{each['digest']}.hsaco" for each in plan["kernels"]}
    assert all(content.startswith(b"\x7fELF") for content in binaries.values())
