"""Decode with one thread in processor time, compared with reading the same bytes. It is suitable for shared machines.

    python -m benchmarks.one_thread gpt2.bundle@threads:1 iree.bundle@local-sync

Each argument is a bundle and the executor that runs it in one thread. The bundles run in turns. Before and after each
token, as many bytes as the first bundle's weights are read in this thread, by numpy's XOR. Waiting for a processor is
not counted; the memory bandwidth and the caches that other programs use do affect the result.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bringup import load
from bringup.compile.bundle.folder import WEIGHTS

PROMPT, LONG = list(range(100, 116)), 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE[@EXECUTOR]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--prefill", action="store_true", help=f"also take in {LONG} tokens, twice")
    options = parser.parse_args()
    sessions = {}
    for name in options.bundles:
        path, _, executor = name.partition("@")
        sessions[name] = load(path, executor or None)
    words = np.ones(Path(options.bundles[0].partition("@")[0], WEIGHTS).stat().st_size // 8, np.uint64)
    for session in sessions.values():
        session.prefill(PROMPT)
        session.decode(1)
    tokens: dict[str, list[float]] = {name: [] for name in sessions}
    shares: dict[str, list[float]] = {name: [] for name in sessions}
    reads = [processor_seconds(lambda: np.bitwise_xor.reduce(words))]
    for _ in range(options.rounds):
        for name, session in sessions.items():
            tokens[name].append(processor_seconds(lambda session=session: session.decode(2)))
            reads.append(processor_seconds(lambda: np.bitwise_xor.reduce(words)))
            shares[name].append((reads[-2] + reads[-1]) / 2 / tokens[name][-1])
    gigabytes = words.nbytes / 1e9
    print(f"read {gigabytes:.3f} GB: {statistics.median(reads) * 1e3:.1f} ms (least {min(reads) * 1e3:.1f})")
    for name, session in sessions.items():
        found = statistics.median(tokens[name]) * 1e3, min(tokens[name]) * 1e3, statistics.median(shares[name])
        text = "{}: token {:.1f} ms (least {:.1f}), {:.2f} of the read".format(name, *found)
        print(text + (f"; prefill of {LONG} {_prefill(session):.2f} s" if options.prefill else ""), flush=True)


def _prefill(session: object) -> float:
    """Seconds for a long prompt, the least of two."""
    prompt = np.random.default_rng(0).integers(0, 1000, LONG).tolist()

    def run() -> None:
        session.reset()
        session.prefill(prompt)

    return min(processor_seconds(run) for _ in range(2))


def processor_seconds(work: Callable[[], object]) -> float:
    """The processor time that this thread spends in `work`, in seconds."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


if __name__ == "__main__":
    main()
