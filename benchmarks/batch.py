"""Eight requests one after the other, and in one batch: `python -m benchmarks.batch BUNDLE [--single BUNDLE]`.

Each variant is a separate process that exists for the whole run and has one turn in each round. The parent measures the
time. A turn starts with loaded weights and empty caches, and includes prefill and the computation of all tokens. The
tokens of both variants are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

TEXTS = (
    "Gravity is",
    "The history of the printing press begins in",
    "To make a good soup, first",
    "In a distributed system, clocks are",
    "Once upon a time, in a village by the sea, there lived",
    "The three laws of thermodynamics say that",
    "Python and C differ in that",
    "A short poem about the moon:",
)
WAYS = ("single", "batch")


def prompts(opened: Any) -> tuple[list[list[int]], frozenset[int]]:
    """Texts where the bundle has a tokenizer, else random tokens; the ids after which a text ends."""
    import numpy as np

    from bringup.diagnostics import BringupError

    try:
        tokenizer = opened.tokenizer()
    except BringupError:
        random = np.random.default_rng(0)
        vocabulary = opened.manifest["vocab_size"]
        return [random.integers(0, vocabulary, 4 + 3 * index).tolist() for index in range(len(TEXTS))], frozenset()
    return [tokenizer.encode(text) for text in TEXTS], tokenizer.eos


def work(way: str, bundle: str, count: int) -> None:
    """Obeys lines of stdin; each answer is the tokens of every request, on one line."""
    import bringup

    opened: Any = bringup.load(bundle) if way == "single" else bringup.load_batch(bundle)
    texts, eos = prompts(opened)
    for _ in sys.stdin:
        if way == "single":
            answers = [list(opened.generate(tokens, max_new_tokens=count, eos=eos)) for tokens in texts]
        else:
            opened._scheduler.restart()  # empty caches: nothing is shared with the turn before
            ids = [opened.add(bringup.Request(tokens, max_new_tokens=count, eos=eos)) for tokens in texts]
            found: dict[int, list[int]] = {id: [] for id in ids}
            while opened:
                for event in opened.step():
                    found[event.id].append(event.token)
            answers = list(found.values())
        print(json.dumps(answers), flush=True)


def turn(worker: subprocess.Popen[str]) -> tuple[float, list[list[int]]]:
    assert worker.stdin
    assert worker.stdout
    start = time.perf_counter()
    worker.stdin.write("go\n")
    worker.stdin.flush()
    answer = json.loads(worker.stdout.readline())
    return time.perf_counter() - start, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="compiled with --max-batch-size 8")
    parser.add_argument("--single", help="the bundle of the single runs; the same one without")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.bundle, given.max_new_tokens)
        return
    bundles = {"single": given.single or given.bundle, "batch": given.bundle}
    workers: dict[str, subprocess.Popen[str]] = {}
    for way in WAYS:
        words = [
            sys.executable,
            "-m",
            "benchmarks.batch",
            bundles[way],
            "--work",
            way,
            "--max-new-tokens",
            str(given.max_new_tokens),
        ]
        workers[way] = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        turn(workers[way])  # loads, and maps the weights
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens: dict[str, list[list[int]]] = {}
    for index in range(given.rounds):
        for way in WAYS if index % 2 else reversed(WAYS):
            seconds, tokens[way] = turn(workers[way])
            speeds[way].append(sum(map(len, tokens[way])) / seconds)
    for worker in workers.values():
        assert worker.stdin
        worker.stdin.close()
        worker.wait()
    equal = sum(one == other for one, other in zip(tokens["single"], tokens["batch"], strict=True))
    ratios = [batch / single for single, batch in zip(speeds["single"], speeds["batch"], strict=True)]
    for way in WAYS:
        least, most = min(speeds[way]), max(speeds[way])
        print(f"{way:>6}: {statistics.median(speeds[way]):6.1f} tokens/s [{least:.1f} - {most:.1f}]")
    print(f"batch is {statistics.median(ratios):.2f}x [{min(ratios):.2f} - {max(ratios):.2f}], {given.rounds} rounds")
    print(f"{equal} of {len(TEXTS)} requests have the same tokens, {sum(map(len, tokens['batch']))} in all")


if __name__ == "__main__":
    main()
