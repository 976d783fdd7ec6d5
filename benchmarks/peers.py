"""The target `llvm` compared with every engine that runs here, on the same weights: three models, one report.

    python -m benchmarks.peers --folder FOLDER --rounds 3 --out FILE

The models are those of `llama_cpp.py`: GPT-2 124M and four layers of Llama 3.2 1B's shape, with random weights, and
SmolLM2-135M. In float32 and bfloat16 (llama.cpp: float16) the other engines are llama.cpp, transformers and
torch.compile. In Q4_1 bringup and llama.cpp read the same file, that of SmolLM2 as published. Engines are separate
processes that run in turns; the bandwidth is measured between turns. Files and bundles stay in FOLDER and are reused.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from bringup.compile.bench.bench import Report, bench
from bringup.compile.bench.contenders import LLAMA_CPP, PEERS
from bringup.compile.bench.timing import Row, Shape
from bringup.system.processors import processors

DECODE, BATCH, PREFILL = Shape(1, 32, 24), Shape(8, 32, 12), Shape(1, 512, 1)
PAIRS = [(model, form) for model in ("gpt2", "smollm2", "llama-1b") for form in ("float32", "bfloat16", "q4_1")]
PACKAGES = {LLAMA_CPP: ("xllamacpp", "llama_cpp")}  # of others: transformers and torch, which bringup needs as well
HEADER = (
    "| model | engine | decode of 1, ms | of the read | x | decode of 8, ms | x | prefill of 512, tokens/s | x "
    "| cpu x | peak MB |\n|---|---" + "|---:" * 9 + "|"
)


def main() -> None:
    options = _options()
    began, lines = time.perf_counter(), [HEADER]
    for model, precision in options.pairs:
        print(f"{time.perf_counter() - began:.0f} s: {model}, {precision}", file=sys.stderr, flush=True)
        lines += _lines(f"{model}, {precision}", _report(model, precision, options))
    notes = (
        f"{options.threads} threads, {options.rounds} rounds after {options.warmup}; load {os.getloadavg()[0]:.1f} at "
        f"the end; {(time.perf_counter() - began) / 60:.1f} minutes. Medians by the clock; x: how many times as fast "
        "the bundle is, the median of ratios within a round; cpu x: the same in time of the processor, decode of 1."
    )
    text = "\n".join([*lines, "", notes])
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")


def _options() -> argparse.Namespace:
    def pair(text: str) -> tuple[str, str]:
        model, _, precision = text.partition(":")
        if (model, precision) not in PAIRS:
            raise argparse.ArgumentTypeError(f"known are {', '.join(map(':'.join, PAIRS))}")
        return model, precision

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1, help="rounds that do not count; torch.compile compiles in one")
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--pairs", type=pair, nargs="+", default=PAIRS, metavar="MODEL:PRECISION")
    parser.add_argument("--against", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report also goes here")
    return parser.parse_args()


def _report(model: str, precision: str, options: argparse.Namespace) -> Report:
    from benchmarks.llama_cpp import files  # here, as the processes of engines import this file

    given = argparse.Namespace(model=model, precision=precision, gguf=None, folder=options.folder)
    bundle, file = files(given)
    runs = {name for name in options.against if any(map(find_spec, PACKAGES.get(name, ("transformers",))))}
    against = [name for name in options.against if name in runs and (precision != "q4_1" or name == LLAMA_CPP)]
    for name in set(options.against) - runs:
        print(f"{name} is not installed", file=sys.stderr)
    return bench(
        bundle, [DECODE, BATCH, PREFILL], against=against, gguf=str(file),
        threads=options.threads, rounds=options.rounds, warmup=options.warmup,
    )  # fmt: skip


def _lines(label: str, report: Report) -> list[str]:
    rows = {(row.contender, row.shape): row for row in report.rows}
    own = report.rows[0].contender
    lines: list[str] = []
    for name, dtype in report.dtypes.items():
        one, eight, prompt = (rows[name, shape] for shape in (DECODE, BATCH, PREFILL))
        ratios = ["", "", "", ""]
        if name != own:
            decode, batch, taken = (rows[own, row.shape].ratios(row) for row in (one, eight, prompt))
            ratios = [f"{x:.2f}" for x in (decode["itl"], batch["itl"], taken["ttft"], decode["step"])]
        shares = [report.weights / median(turn.timing.gaps) / turn.bandwidth for turn in one.turns]
        speed = PREFILL.taken / median(turn.timing.first[0] for turn in prompt.turns)
        figures = [f"{_gap(one):.1f}", f"{median(shares):.2f}", ratios[0], f"{_gap(eight):.1f}", ratios[1]]
        figures += [f"{speed:.0f}", ratios[2], ratios[3], f"{report.peaks[name] / 1e6:.0f}"]
        lines.append(f"| {' | '.join([label, f'{name}, {dtype}', *figures])} |")
    lines.append(f"| {label} | read {report.bandwidth / 1e9:.1f} GB/s |{' |' * 9}")
    return lines


def _gap(row: Row) -> float:
    """Milliseconds between tokens."""
    return 1e3 * median(median(turn.timing.gaps) for turn in row.turns)


if __name__ == "__main__":
    main()
