"""`bringup check` of each flagship's complete checkpoint, headers only, compared with a parse of the headers.

`python -m benchmarks.flagships [--rounds N] [--only NAME]… [--out FILE]`. Each round runs both in turn, so that other
load affects both; the ratio is that of the medians. Processor time (user and system) is reported besides elapsed time,
because it is steadier on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

from tests.flagships.published import BY_NAME
from tests.flagships.quantised import QUANTISED

EVERY = [*BY_NAME, *QUANTISED]
CHECK = Path(sys.executable).with_name("bringup")
# Code that is installed has been compiled; a variable that forbids to keep that would count it each time.
KEEP_CODE = "PYTHONDONTWRITEBYTECODE"
# What nothing that checks a checkpoint can do without.
PARSE = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    with path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")))
"""


@dataclass(frozen=True)
class Run:
    """One process from start to end: exit code, seconds elapsed, seconds of processor, bytes at its largest."""

    code: int
    seconds: float
    processor: float
    peak: int


def run(*words: str | Path, env: Mapping[str, str] = os.environ) -> Run:
    """Output is thrown away. This process has to stay small: a child's peak is at least what its parent has."""
    with Path(os.devnull).open("w") as nowhere:
        start = time.perf_counter()
        actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1), (os.POSIX_SPAWN_DUP2, nowhere.fileno(), 2)]
        child = os.posix_spawn(str(words[0]), [str(word) for word in words], env, file_actions=actions)
        _, status, used = os.wait4(child, 0)
        seconds = time.perf_counter() - start
    return Run(os.waitstatus_to_exitcode(status), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def write_headers(name: str, folder: Path) -> int:
    """The checkpoint's files; how many tensors it has."""
    from tests.flagships.headers import tensors_of, write

    if name in QUANTISED:
        return len(QUANTISED[name].write(folder))
    tensors = tensors_of(BY_NAME[name])
    write(folder, BY_NAME[name], tensors)
    return len(tensors)


def measured(name: str, tensors: int, folder: Path, rounds: int) -> str:
    """A row of the table."""
    run(CHECK, "check", "--checkpoint", folder)  # code and headers are in the page cache from here on
    parses, checks = [], []
    for _ in range(rounds):
        parses.append(run(sys.executable, "-c", PARSE, folder))
        checks.append(run(CHECK, "check", "--checkpoint", folder))
    code = max(check.code for check in checks)
    seconds, floor = (statistics.median(each.seconds for each in runs) for runs in (checks, parses))
    processor, least = (statistics.median(each.processor for each in runs) for runs in (checks, parses))
    peak = max(check.peak for check in checks)
    return (
        f"| {name} | {tensors:,} | {code} | {seconds:.2f} | {floor:.2f} | {seconds / floor:.1f} | {processor:.2f} | "
        f"{least:.2f} | {processor / least:.1f} | {peak / 1e6:.0f} |"
    )


def report(rows: list[str], rounds: int) -> str:
    lines = [
        "`bringup check` of whole published checkpoints of which only the headers are real (tests/flagships), next to "
        f"a Python process that reads and `json.loads` the same headers. Whole processes, medians of {rounds} rounds.",
        "",
        "| checkpoint | tensors | exit | check, s | parse, s | ratio | check, processor s | parse, processor s | ratio "
        "| peak, MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
        "",
        f"{datetime.now():%Y-%m-%d %H:%M}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end.",
        f"`python -m benchmarks.flagships {' '.join(sys.argv[1:])}`",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=sorted(EVERY))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[str] = []
    os.environ.pop(KEEP_CODE, None)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as writer:
        for name in options.only or EVERY:
            tensors = writer.submit(write_headers, name, Path(folder, name)).result()
            rows.append(measured(name, tensors, Path(folder, name), options.rounds))
            print(rows[-1], flush=True)
    text = report(rows, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
