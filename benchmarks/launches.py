"""The time of each launch of an entry point of an `llvm` bundle, with one thread, compared with its lower bound.

    python -m benchmarks.launches gpt2.bundle --context 128
    python -m benchmarks.launches gpt2.bundle --context 512 --prefill

Times are processor times. The lower bound of a launch is its bytes divided by the read bandwidth, or its floating-point
operations divided by the rate of fused multiply-adds on registers, whichever is longer. Both rates are measured between
steps.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from llvmlite import ir

from bringup import load
from bringup.compile.llvm.executor import LlvmExecutor
from bringup.compile.llvm.ir.cell import Cell
from bringup.compile.llvm.ir.dtypes import I64
from bringup.compile.llvm.ir.emitter import Emitter, real, vector
from bringup.compile.llvm.ir.machine import host
from bringup.compile.llvm.module import Loaded, compiled
from bringup.compile.schedule.costs import cost_of

WORDS = 16 << 20  # of 8 bytes, that the probe reads
CHAINS, TURNS = 12, 1_000_000  # of the probe that computes: sums that do not wait for each other, additions to each
SHORTEST = 3e-6  # seconds of a launch: of shorter ones the clock says nothing
COLUMNS = ("kernel", "operations", "launches", "ms", "MB", "MFLOP", "GB/s", "GFLOP/s", "share of the floor")


class Rates:
    """What one thread reads, and computes on registers, a second of its processor."""

    def __init__(self) -> None:
        module, machine = ir.Module("probe"), host()
        module.triple = machine.triple
        e = Emitter(module, "probe", machine)
        cells = [Cell(e.b, vector(machine.lanes), e.zero(machine.lanes)) for _ in range(CHAINS)]
        with e.loop(I64(0), I64(TURNS)):
            for cell in cells:
                cell.set(e.multiply_add(cell.get(), real(0.5, cell.get()), real(1.0, cell.get())))
        for n, cell in enumerate(cells):
            e.store(e.scratch, "float32", I64(n * machine.lanes), cell.get())
        e.finish()
        self._loaded = Loaded([compiled(str(module), machine, vectorise=False)], machine)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._probe = kind(self._loaded.address("probe"))
        self._flops = 2 * CHAINS * TURNS * machine.lanes
        self._scratch = np.zeros(CHAINS * machine.lanes, np.float32)
        self._words = np.ones(WORDS, np.uint64)
        self.reads: list[float] = []
        self.computes: list[float] = []

    def measure(self) -> None:
        start = time.thread_time()
        np.bitwise_xor.reduce(self._words)
        middle = time.thread_time()
        self._probe(0, 0, 1, self._scratch.ctypes.data)
        self.reads.append(self._words.nbytes / (middle - start))
        self.computes.append(self._flops / (time.thread_time() - middle))


@dataclass
class Line:
    """Launches of one kind; `seconds` are of all of them, in each step."""

    launches: int = 0
    nbytes: int = 0
    flops: int = 0
    seconds: list[float] | None = None


def profile(
    executor: LlvmExecutor, entry: str, step: Mapping[str, np.ndarray], keys: int, rounds: int
) -> tuple[dict[tuple[str, str], Line], Rates, float]:
    """Lines by kernel and operations; the rates; the seconds of a whole step."""
    lines: dict[tuple[str, str], Line] = defaultdict(Line)
    rates, wholes = Rates(), []
    for number in range(rounds):
        rates.measure()
        start = time.thread_time()
        executor.step(entry, step)
        wholes.append(time.thread_time() - start)
        found: dict[tuple[str, str], float] = defaultdict(float)
        for timed in executor.timed_step(entry, step):
            group, graph = timed.launch.group, timed.launch.graph
            sizes = [list(graph.buffers[name].shape) for name in sorted(group.outputs & graph.planned)]
            label = timed.call.kernel.stem, f"{'+'.join(node.short for node in group.nodes)} {sizes}"
            found[label] += timed.seconds
            if number == 0:
                cost = cost_of(graph, group, keys)
                line = lines[label]
                line.launches, line.nbytes, line.flops = (
                    line.launches + 1, line.nbytes + cost.nbytes, line.flops + cost.flops
                )  # fmt: skip
        for label, seconds in found.items():
            lines[label].seconds = [*(lines[label].seconds or []), seconds]
    rates.measure()
    return lines, rates, median(wholes)


def rows_of(lines: Mapping[tuple[str, str], Line], rates: Rates) -> list[tuple[Any, ...]]:
    """The table, the longest first."""
    read, compute = median(rates.reads), median(rates.computes)
    found: list[tuple[Any, ...]] = []
    for (kernel, operations), line in lines.items():
        seconds = max(median(line.seconds or [0.0]), 1e-9)
        floor = max(line.nbytes / read, line.flops / compute)
        figures = (seconds * 1e3, line.nbytes / 1e6, line.flops / 1e6, line.nbytes / seconds / 1e9)
        row = (kernel, operations, line.launches, *(round(each, 3) for each in (*figures, line.flops / seconds / 1e9)))
        found.append((*row, round(floor / seconds, 3) if seconds > SHORTEST * line.launches else ""))
    return sorted(found, key=lambda row: -row[3])


def captured(bundle: str, context: int, *, prefill: bool) -> tuple[LlvmExecutor, str, dict[str, np.ndarray]]:
    """An executor of one thread, and the last step of taking in so many tokens, or the one after."""
    session = load(bundle, "threads:1")
    executor = session.executor
    assert isinstance(executor, LlvmExecutor)
    seen: list[tuple[str, dict[str, np.ndarray]]] = []
    run = executor.step

    def step(entry: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append((entry, {name: np.array(array) for name, array in arrays.items()}))
        return run(entry, arrays)

    executor.step = step  # type: ignore[method-assign]
    session.prefill(np.random.default_rng(0).integers(0, session.manifest["vocab_size"], context).tolist())
    if not prefill:
        session.decode(1)
    executor.step = run  # type: ignore[method-assign]
    return executor, *seen[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--context", type=int, default=128, metavar="N")
    parser.add_argument("--prefill", action="store_true", help="the last step of the prompt, not the first of decode")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    executor, entry, step = captured(options.bundle, options.context, prefill=options.prefill)
    lines, rates, whole = profile(executor, entry, step, options.context + 1, options.rounds)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows_of(lines, rates))
    read, compute = median(rates.reads) / 1e9, median(rates.computes) / 1e9
    floor = sum(max(line.nbytes / read, line.flops / compute) for line in lines.values()) / 1e9
    text = f"{entry}: {whole * 1e3:.2f} ms, {floor / whole:.2f} of the floor of its launches"
    print(f"{text}; read {read:.1f} GB/s, compute {compute:.1f} GFLOP/s", file=sys.stderr)


if __name__ == "__main__":
    main()
