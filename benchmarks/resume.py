"""Kills a conversion of 4 GiB halfway, resumes it, and counts the shards that are written twice.

    python -m benchmarks.resume FOLDER [--gib 4]

FOLDER gets the checkpoint of benchmarks/adapt.py, once, and the conversions. The process is killed by SIGKILL when its
journal lists half of the shards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.adapt import LLAMA, checkpoint
from bringup.compile.convert.shards import SHARD


def command(source: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "bringup", "convert", "--checkpoint", str(source), "--tp", "2", "-o", str(out)]


def lines(out: Path) -> int:
    """Shards that the journal names."""
    journal = out.parent / f".{out.name}.resume" / "journal"
    return len(journal.read_text().splitlines()) - 1 if journal.is_file() else 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--gib", type=float, default=4.0)
    given = options.parse_args()
    source, out = checkpoint(given.folder / "llama", LLAMA, given.gib), given.folder / "ranks"
    for left in (out, out.parent / f".{out.name}.resume"):
        shutil.rmtree(left, ignore_errors=True)
    nbytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    half, start = nbytes // SHARD // 2, time.perf_counter()
    running = subprocess.Popen(command(source, out), stderr=subprocess.DEVNULL)
    while lines(out) < half:
        assert running.poll() is None, "it ended before the kill"
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    first, there = time.perf_counter() - start, lines(out)
    assert not out.exists()
    start = time.perf_counter()
    done = subprocess.run(command(source, out), check=True, stderr=subprocess.PIPE, text=True)
    second = time.perf_counter() - start
    written = next(line.strip() for line in done.stderr.splitlines() if "taken over" in line)
    read = json.loads((out / "bringup.json").read_text())["read"]
    print(f"{nbytes / (1 << 30):.2f} GiB in shards of {SHARD >> 20} MiB for 2 ranks, killed after {first:.1f} s")
    print(f"{there} shards in the journal; the second run, {second:.1f} s: {written}")
    again = read - (nbytes - there * SHARD)
    print(f"it read {read / (1 << 30):.2f} GiB: {again / (1 << 20):+.0f} MiB next to what the journal lacked")
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
