"""benchmarks/results/…-random-ops.md: random operations of the target `llvm` against float64.

`python -m benchmarks.random_ops --first 0 --cases 100000` goes through the seeds; `--seconds` ends it before. See
tests/llvm/random_cases.py for what a seed draws, and for the bounds.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

from tests.llvm.random_cases import Different, check

PAGE = Path(__file__).parent / "results" / "2026-11-23-random-ops.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, processor = time.monotonic(), time.process_time()
    counts, worst, wrong = Counter[str](), dict[str, float](), list[str]()
    for seed in range(options.first, options.first + options.cases):
        if time.monotonic() - start > options.seconds:
            break
        try:
            name, part = check(seed)
        except Different as error:
            wrong.append(str(error).replace("\n", " ")[:300])
            print(wrong[-1], flush=True)
            continue
        counts[name] += 1
        worst[name] = max(worst.get(name, 0.0), part)
    seconds = time.process_time() - processor
    PAGE.write_text(page(options.first, counts, worst, wrong, seconds), "utf-8")


def page(first: int, counts: Counter[str], worst: dict[str, float], wrong: list[str], seconds: float) -> str:
    """The page, whose largest differences are parts of the bounds."""
    total = counts.total() + len(wrong)
    lines = [
        "# Random operations on the CPU, 2026-11-23", "",
        f"{total} cases from seed {first} on: {len(wrong)} beyond the bound; {seconds:.0f} s of processor time.", "",
        "| operation | cases | largest difference, of its bound |", "|---|---|---|",
        *(f"| {name} | {count} | {worst[name]:.2f} |" for name, count in sorted(counts.items())), "",
        *(f"- {each}" for each in wrong), *([""] if wrong else []),
        "`python -m benchmarks.random_ops`",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
