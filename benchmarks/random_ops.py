"""Writes benchmarks/results/…-random-ops.md: random operations of the target `cpu` compared with float64.

`python -m benchmarks.random_ops --first 0 --sets 100` checks the sets of these seeds; `--seconds` limits the time.
Results are added to those in a JSON file next to the page, as long as the kernels and the generators of cases do not
change. Several processes may run at once. tests/llvm/cases/check.py defines cases and bounds.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from bringup.compile.llvm.files import source_digest
from tests.llvm.cases import check

PAGE = Path(__file__).parent / "results" / "2026-11-25-random-ops.md"
COUNTS = PAGE.with_suffix(".json")
ABOUT = (
    "A case is one operation with its dtypes, sizes and options, numbers for all its arguments, an instruction set",
    f"({', '.join(f'`{name}`' for name in check.MACHINES)}), and 1, 2, 5 or 64 threads, which run one after another",
    "in either order. Kernels of a set of operations are compiled together; each operation then has several draws of",
    "numbers: plain, of many sizes, rows of zeros, below the normal numbers, with infinities and NaN. Kernels that",
    "have sizes as arguments get other sizes with each draw. Those of element-wise and general operations have them in",
    "their code: there the draws of one kernel differ in numbers and threads alone, so there are more cases than",
    "kernels. Bytes around each array must stay as they were.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = key()
    start, processor = time.monotonic(), time.process_time()
    counts, seeds = check.Counts(), list[int]()
    for seed in range(options.first, options.first + options.sets):
        if time.monotonic() - start > options.seconds:
            break
        check.check_set(seed, counts)
        seeds.append(seed)
    share = {
        "seeds": seeds, "seconds": time.process_time() - processor, "kernels": counts.kernels,
        "cases": counts.cases, "worst": counts.worst, "wrong": counts.wrong,
    }  # fmt: skip
    if key() != source:
        raise SystemExit("the source has changed since this share began: it does not count")
    with COUNTS.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        total = added(json.loads(file.read() or "{}"), share, source)
        file.truncate(0)
        file.write(json.dumps(total, indent=1, sort_keys=True) + "\n")
        file.flush()
        PAGE.write_text(page(total), "utf-8")


def key() -> str:
    """SHA-256 of what kernels are emitted by and of what draws and compares: counts of another do not mix."""
    tests = Path(check.__file__).parents[2]
    files = [*(tests / "llvm").rglob("*.py"), *(tests / "kernels").glob("*.py")]
    text = source_digest() + "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def added(total: dict[str, Any], share: dict[str, Any], source: str) -> dict[str, Any]:
    """The counts with a share. Raises SystemExit for a seed that is counted already."""
    if total.get("source") != source:
        total = {"source": source, "seeds": [], "seconds": 0.0, "kernels": 0, "cases": {}, "worst": {}, "wrong": []}
    if twice := set(total["seeds"]) & set(share["seeds"]):
        raise SystemExit(f"sets that are counted already: {sorted(twice)[:3]}…")
    worst = {name: max(total["worst"].get(name, 0.0), share["worst"].get(name, 0.0)) for name in
             {*total["worst"], *share["worst"]}}  # fmt: skip
    return {
        "source": source, "seeds": sorted([*total["seeds"], *share["seeds"]]),
        "seconds": total["seconds"] + share["seconds"], "kernels": total["kernels"] + share["kernels"],
        "cases": Counter(total["cases"]) + Counter(share["cases"]), "worst": worst,
        "wrong": [*total["wrong"], *share["wrong"]],
    }  # fmt: skip


def page(total: dict[str, Any]) -> str:
    """The page, whose largest differences are parts of the bounds."""
    cases = sum(total["cases"].values()) + len(total["wrong"])
    lines = [
        "# Random operations on the CPU, 2026-11-25", "",
        f"{cases:,} cases of {len(total['seeds'])} sets: {len(total['wrong'])} beyond the bound. "
        f"{total['kernels']:,} kernels were compiled; {total['seconds']:.0f} s of processor time, "
        f"{1000 * total['seconds'] / max(cases, 1):.1f} ms a case.", "",
        *ABOUT, "",
        "Results without a bound (0.00 where there is one) are what float64 gives, rounded once.", "",
        "| operation | cases | largest difference, of its bound |", "|---|---|---|",
        *(f"| {name} | {count} | {total['worst'][name]:.2f} |" for name, count in sorted(total["cases"].items())), "",
        *(f"- {each}" for each in total["wrong"]), *([""] if total["wrong"] else []),
        f"Source of the kernels and of the cases: `{total['source'][:12]}`.", "",
        "`python -m benchmarks.random_ops --first N --sets M`, added up in the JSON file of the same name.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
