"""The growth of cost as CSV: decode by context, prefill by length, a step by batch, a compile by layers and parameters.

    python -m benchmarks.growth decode smollm2.bundle --sizes 128,512,2048,8000 >> docs/cpu-performance.csv
    python -m benchmarks.growth prefill gpt2.bundle --sizes 32,128,512,1000 >> docs/cpu-performance.csv
    python -m benchmarks.growth batch gpt2-b8.bundle --sizes 1,2,4,8 >> docs/cpu-performance.csv
    python -m benchmarks.growth compile --sizes 2,6,12 >> docs/cpu-performance.csv
    python -m benchmarks.growth parameters --sizes 384,768,1536 >> docs/cpu-performance.csv
    python -m benchmarks.chart docs/cpu-performance.csv docs/cpu-performance.png

Figures are milliseconds of processor time, medians of rounds, with one thread. The caches of keys are empty; no prompt
is processed before. A compile is that of GPT-2 with random weights and an empty cache, with the given number of layers,
or with 12 layers and the given number of channels. Its time is the sum over its processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.launches import Rates
from bringup import load_batch, open_job
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.compile.bundle.folder import WEIGHTS
from bringup.compile.llvm.executor import LlvmExecutor
from bringup.compile.program.program import Entry
from bringup.compile.program.step_inputs import Chunk, packed
from bringup.compile.schedule.costs import cost_of
from bringup.graphs.core.step import BLOCK

PARTS = ("decode", "prefill", "batch", "compile", "parameters")
CONTEXT = 128  # of each sequence, where the batch grows
Row = tuple[str, str, int, float, float | str]  # part, model, size, milliseconds, share of the floor


class Bundle:
    """A bundle that runs in one thread, and what its steps take."""

    def __init__(self, path: str, rounds: int) -> None:
        batch = load_batch(path, "threads:1")
        assert isinstance(batch.executor, LlvmExecutor)
        self.name, self.interface, self.manifest = Path(path).stem, batch.interface, batch.manifest
        self._executor, self._rounds, self._rates = batch.executor, rounds, Rates()

    def step(self, part: str, size: int, entry: Entry, chunks: Iterable[Chunk], keys: int) -> Row:
        """A step of an entry point; `keys`: of each sequence, once it is in."""
        chunks = list(chunks)
        given = (entry.num_tokens, entry.num_sequences, self.interface.num_blocks - 1, self.interface.num_rows - 1)
        arrays = packed(chunks, *given)
        self._executor.step(entry.name, arrays)
        seconds: list[float] = []
        for _ in range(self._rounds):
            self._rates.measure()
            start = time.thread_time()
            self._executor.step(entry.name, arrays)
            seconds.append(time.thread_time() - start)
        found = median(seconds)
        return (part, self.name, size, round(found * 1e3, 3), round(self._floor(entry, keys) / found, 3))

    def _floor(self, entry: Entry, keys: int) -> float:
        """Seconds for the bytes or for the operations of each launch, whichever take longer."""
        read, compute = median(self._rates.reads), median(self._rates.computes)
        costs = (cost_of(each.graph, each.group, keys) for each in self._executor.schedule.launches(entry.name))
        return sum(max(cost.nbytes / read, cost.flops / compute) for cost in costs)


def decode(bundle: Bundle, sizes: list[int]) -> Iterator[Row]:
    entry = next(each for each in bundle.interface.entries if each.decode)
    for size in sizes:
        yield bundle.step("decode", size, entry, [_chunk(0, [1], size - 1)], size)


def prefill(bundle: Bundle, sizes: list[int]) -> Iterator[Row]:
    """The steps of a prompt, added up: as long as they can be, and the shortest for the rest."""
    entries = {each.num_tokens: each for each in bundle.interface.entries if not each.decode}
    for size in sizes:
        first, parts = 0, []
        while first < size:
            fitting = [count for count in entries if count >= size - first]
            length = min(fitting) if fitting else max(entries)
            tokens = [1] * min(length, size - first)
            parts.append(bundle.step("prefill", size, entries[length], [_chunk(0, tokens, first)], first + len(tokens)))
            first += len(tokens)
        total = sum(part[3] for part in parts)
        yield ("prefill", bundle.name, size, round(total, 3), round(sum(p[3] * float(p[4]) for p in parts) / total, 3))


def batch(bundle: Bundle, sizes: list[int]) -> Iterator[Row]:
    entries = {each.num_sequences: each for each in bundle.interface.entries if each.decode}
    for size in sizes:
        yield bundle.step("batch", size, entries[size], [_chunk(n, [1], CONTEXT - 1) for n in range(size)], CONTEXT)


def compiled(layers: int) -> Row:
    """A compile of GPT-2 of so many layers."""
    return ("compile", "gpt2-float32", layers, _compile({"n_layer": layers})[0], "")


def parameters(channels: int) -> Row:
    """A compile of GPT-2 of so many channels; its size is in millions of parameters."""
    spent, count = _compile({"n_embd": channels})
    return ("parameters", "gpt2-float32", round(count / 1e6), spent, "")


def _compile(words_of_config: Mapping[str, int]) -> tuple[float, int]:
    """Milliseconds of the processor for a complete `bringup compile` and its children, and the parameters."""
    with TemporaryDirectory(prefix="bringup-") as folder:
        config: Mapping[str, Any] = {**open_job("gpt2", "dummy").config, **words_of_config}
        Path(folder, "config.json").write_text(json.dumps(config), "utf-8")
        words = ["compile", "gpt2", "--checkpoint", "dummy", "--config", f"{folder}/config.json", "--target", "llvm"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "bringup", *words, "-o", f"{folder}/b"],
            check=True, stderr=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"},
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        tensors = read_header(Path(folder, "b", WEIGHTS))
    count = sum(math.prod(info.shape) for info in tensors.values())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(spent * 1e3, 1), count


def _chunk(number: int, tokens: list[int], first: int) -> Chunk:
    """Tokens of a sequence in blocks of its own."""
    blocks = -(-(first + len(tokens)) // BLOCK)
    return Chunk(tokens, first, range(number * blocks, (number + 1) * blocks), number, first + len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.part in ("compile", "parameters"):
        rows: Iterable[Row] = map({"compile": compiled, "parameters": parameters}[options.part], options.sizes)
    elif options.bundle is None:
        parser.error("this part takes a bundle")
    else:
        rows = {"decode": decode, "prefill": prefill, "batch": batch}[options.part](
            Bundle(options.bundle, options.rounds), options.sizes
        )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
