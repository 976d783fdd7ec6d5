"""Targets `rocm:…`: a bundle of AMD's machine code, whose schedule the reference runs."""

from __future__ import annotations

import json
from pathlib import Path

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from tests.schedule.models import CONTEXT, PREFILL, job_of

PROMPTS = ([1, 2, 3], list(range(14, 34)))
NEW = 6


def test_the_reference_gives_the_tokens_of_torch(tmp_path: Path) -> None:
    job = job_of("llama", tmp_path)
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    wanted = load(build(job, out=tmp_path / "t", target="torch", **settings))
    folder = build(job, out=tmp_path / "r", target="rocm:gfx942", **settings)
    ours = load(folder, "reference")
    for prompt in PROMPTS:
        answers = [list(session.generate(prompt, max_new_tokens=NEW)) for session in (ours, wanted)]
        assert answers[0] == answers[1]
        ours.reset()
        wanted.reset()
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    binaries = {file.name: file.read_bytes() for file in (folder / "cubins").iterdir()}
    assert set(binaries) == {f"{each['digest']}.hsaco" for each in plan["kernels"]}
    assert all(content.startswith(b"\x7fELF") for content in binaries.values())
