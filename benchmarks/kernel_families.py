"""Writes benchmarks/results/…-kernel-families.md: logits and tokens of kernels in the emulator compared with torch.

`python -m benchmarks.kernel_families` compiles a tiny model of each family for each architecture and dtype, without
a GPU, and writes the page after each family. `--only llama` prints the rows of one family.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import load
from tests.models import parity
from tests.schedule.models import CONTEXT, PREFILL
from tests.targets.test_gpu import FAMILIES, NEW

PAGE = Path(__file__).parent / "results" / "2026-11-23-kernel-families.md"
ARCHITECTURES, DTYPES = ("sm_80", "sm_90"), ("float32", "bfloat16")
SETTINGS = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4}
HEAD = """# Kernels of tiny models in the emulator

The largest difference of a logit from `--target torch`, over the largest logit: a prefill of {prefill} tokens and
{new} decode steps of one sequence. Then four prompts of different lengths as one batch, {new} greedy tokens each: how
many of the 4 answers are those of torch. In bfloat16 both sides round, at different places, so that two tokens of
random weights may change places. Seconds are those of compiling and of all steps, on a busy machine.

| model | architecture | dtype | logits | answers | seconds |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Torch:
    """What `--target torch` gives."""

    logits: np.ndarray
    answers: list[list[int]]


def answers(out: Path, executor: str | None, tokens: list[int]) -> list[list[int]]:
    """Greedy tokens of four requests of 3 to 6 tokens, one batch."""
    batch = load_batch(out, executor)
    found = {batch.add(Request(tokens[start : 2 * start + 3], max_new_tokens=NEW)): [] for start in range(4)}
    while batch:
        for event in batch.step():
            found[event.id] += [event.token]
    return list(found.values())


def row(name: str, job: Job, architecture: str, dtype: str, torch: Torch, tokens: list[int], folder: Path) -> str:
    begin = time.perf_counter()
    out = build(job, out=folder / architecture, target=f"cuda:{architecture}", **SETTINGS)
    ours = parity.run(load(out, "emulate"), tokens, PREFILL)
    far = float(np.abs(ours - torch.logits).max() / np.abs(torch.logits).max())
    same = sum(a == b for a, b in zip(answers(out, "emulate", tokens), torch.answers, strict=True))
    return f"| {name} | {architecture} | {dtype} | {far:.1e} | {same} of 4 | {time.perf_counter() - begin:.0f} |"


def rows(name: str) -> list[str]:
    found: list[str] = []
    for dtype in DTYPES:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            checkpoint = parity.save_checkpoint(FAMILIES[name], folder / "checkpoint", dtype)
            job = open_job(checkpoint=str(checkpoint))
            tokens = parity.random_tokens(PREFILL + NEW, job.graph.config.vocab_size)
            out = build(job, out=folder / "torch", target="torch", **SETTINGS)
            torch = Torch(parity.run(load(out), tokens, PREFILL), answers(out, None, tokens))
            for architecture in ARCHITECTURES:
                found.append(row(name, job, architecture, dtype, torch, tokens, folder))
                print(found[-1], flush=True)
    return found


def page(found: Sequence[str], versions: str) -> str:
    """The page of some rows, and which are missing."""
    head = HEAD.format(prefill=PREFILL, new=NEW)
    cases = (f"| {name} | {at} | {dtype} |" for name in FAMILIES for dtype in DTYPES for at in ARCHITECTURES)
    missing = [case for case in cases if not any(line.startswith(case) for line in found)]
    lines = [*found, *(f"{case} not run | | |" for case in missing)]
    return f"{head}{chr(10).join(lines)}\n\n{versions}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(FAMILIES), help="print the rows of one family")
    only = parser.parse_args().only
    warnings.filterwarnings("ignore")
    found: list[str] = []
    for name in FAMILIES:
        if only in (None, name):
            found += rows(name)
            if not only:  # after each family: a run that is ended has those before
                PAGE.write_text(page(found, f"Triton {version('triton')}, torch {version('torch')}."), "utf-8")


if __name__ == "__main__":
    main()
