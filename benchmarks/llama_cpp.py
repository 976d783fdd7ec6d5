"""Bundles of the target `llvm` compared with llama.cpp on the same weights, with the rounds of `bringup bench`.

    python -m benchmarks.llama_cpp gpt2 float32 --folder FOLDER [--threads N] [--rounds N] [--shapes 1,32,16 …]

A run has one model: GPT-2 124M or four layers of Llama 3.2 1B's shape, with random weights, or the published
SmolLM2-135M, from its Q4_1 file or dequantised. Precisions are float32, bfloat16 (llama.cpp gets a file in float16, or
in bfloat16 with `--gguf bf16`) and q4_1. Files and bundles stay in FOLDER and are reused. A shape is the number of
sequences, the tokens of each prompt, and the number of new tokens. The table has the processor time of all threads in
seconds: of the prompt, or, with several new tokens, the median of later steps, each of which computes a token for every
sequence.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from bringup.compile.bench.bench import Report, bench
from bringup.compile.bench.contenders import LLAMA_CPP, TRANSFORMERS
from bringup.compile.bench.timing import Shape, Turn

CONTEXT, BATCH = 768, 8
FORMS = {"float32": "f32", "bfloat16": "f16", "q4_1": "q4_1"}  # of llama.cpp's file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("gpt2", "smollm2", "llama-1b"))
    parser.add_argument("precision", choices=FORMS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gguf", choices=("f32", "f16", "bf16"), help="of llama.cpp's file; default: f32 or f16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=["1,32,16", "8,32,8", "1,512,1"], metavar="B,IN,OUT")
    parser.add_argument("--transformers", action="store_true", help="also time transformers")
    given = parser.parse_args()
    bundle, file = files(given)
    report = bench(
        str(bundle),
        [Shape(*map(int, word.split(","))) for word in given.shapes],
        against=[LLAMA_CPP, TRANSFORMERS] if given.transformers else [LLAMA_CPP],
        gguf=str(file),
        threads=given.threads,
        rounds=given.rounds,
        warmup=0,
    )
    print(table(given.model, report))


def files(given: argparse.Namespace) -> tuple[Path, Path]:
    """A bundle for the shapes, compiled where it is not there yet, and llama.cpp's file."""
    from benchmarks.llama_cpp_files import sources
    from bringup.compile.job import open_job  # here, as the processes of contenders import this file
    from bringup.compile.pipeline import build

    source, file = sources(given.model, given.gguf or FORMS[given.precision], given.folder)
    out: Path = given.folder / f"{given.model}-{given.precision}.bundle"
    if not out.exists():
        packed = given.precision == "q4_1"
        job = open_job(checkpoint=source, dtype="auto" if packed else given.precision)
        form = "packed" if packed else "float"
        build(job, out=out, target="llvm", max_seq_len=CONTEXT, max_batch_size=BATCH, weights_form=form)
    return out, file


def table(model: str, report: Report) -> str:
    """Markdown: a line for each shape and contender. Ratios: how many times as fast the bundle is, round by round."""
    lines = ["| model | shape | engine | ms of the processor | least | cpu x | each round | clock x | equal |"]
    lines.append("|---" * lines[0].count(" | ") + "|---|")
    own = {row.shape: row for row in report.rows if row.contender == report.rows[0].contender}
    for row in report.rows:
        shape, bundle = row.shape, own[row.shape]
        found = list(map(_milliseconds, row.turns))
        name = f"{row.contender}, {report.dtypes[row.contender]}"
        cells = [model, f"{shape.batch} x ({shape.taken} + {shape.new})", name]
        cells += [f"{median(found):.1f}", f"{min(found):.1f}"]
        if row is not bundle:
            each = [theirs / ours for theirs, ours in zip(found, map(_milliseconds, bundle.turns), strict=True)]
            ratios = bundle.ratios(row)
            cells += [f"{median(each):.2f}", ", ".join(f"{ratio:.2f}" for ratio in each)]
            cells += [f"{ratios.get('itl', ratios['ttft']):.2f}", f"{bundle.equal_tokens(row)} of {shape.new}"]
        lines.append(f"| {' | '.join(cells)} |")
    peaks = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in report.peaks.items())
    counts = f"{report.threads} threads, {report.rounds} rounds; read {report.bandwidth / 1e9:.1f} GB/s by the clock"
    return "\n".join([*lines, "", f"{counts}; peak memory: {peaks}"])


def _milliseconds(turn: Turn) -> float:
    timing = turn.timing
    return 1e3 * (median(timing.processor_of_steps) if len(timing.steps) > 2 else timing.processor)


if __name__ == "__main__":
    main()
