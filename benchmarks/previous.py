"""This checkout compared with an earlier commit, in the processor time of commands. See README.md.

    python -m benchmarks.previous COMMIT [--part PART]… [--only NAME]… [--rounds N] [--least RATIO] [--out FILE]

GPT-2 124M in float32 on the target `cpu`: compile from nothing and again in another folder, prefill and decode of one
sequence; and `check` of published checkpoints, headers only (tests/flagships). The commit is checked out to a separate
folder, which precedes this checkout in PYTHONPATH. Both sides have the same interpreter and packages, and read the same
files. Each round runs both sides in turn, and the next round begins with the other one. A ratio is the commit's median
divided by this checkout's: below 1, this checkout is slower. The exit code is 1 if a ratio is below `--least`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.client import Worker
from benchmarks.flagships import EVERY, KEEP_CODE, run, write_headers
from bringup import open_job
from bringup.compile.bundle.weights_file import write_weights
from bringup.compile.cache.file_identity import SETTLED

ROOT = Path(__file__).parents[1]
LEAST = 0.95
PARTS = ("compile", "run", "check")
LARGE = ("deepseek-v3", "gpt-oss-120b", "llama-3.1-405b", "qwen3-235b-a22b")
SHORT, LONG = 32, 160  # decoded tokens of two runs, whose difference is the time of decode alone


@dataclass
class Side:
    """A checkout, and the processor seconds of each of its measurements."""

    name: str
    root: Path
    scratch: Path
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    worker: Worker | None = None
    round: int = 0

    @property
    def cache(self) -> Path:
        """A new folder in each round: nothing there was compiled before."""
        return self.scratch / f"cache-{self.round}"

    @property
    def env(self) -> dict[str, str]:
        """What makes `import bringup` this side's. Byte code is kept, as it is for users, and compiled once."""
        places = {"PYTHONPATH": self.root, "PYTHONPYCACHEPREFIX": self.scratch / "bytecode"}
        places["BRINGUP_COMPILE_CACHE"] = self.cache
        inherited = {name: value for name, value in os.environ.items() if name != KEEP_CODE}
        return inherited | {name: str(path) for name, path in places.items()}

    def command(self, *words: str | Path) -> float:
        """Processor seconds of a whole `bringup` process."""
        # -P: otherwise the current folder precedes PYTHONPATH, and both sides run this checkout.
        done = run(sys.executable, "-P", "-m", "bringup", *words, env=self.env)
        if done.code:
            raise RuntimeError(f"{self.name}: `bringup {' '.join(map(str, words))}` ended with code {done.code}")
        return done.processor

    def answer_seconds(self, command: str) -> float:
        """Processor seconds in which the worker answers."""
        assert self.worker
        before = self.worker.cpu_seconds()
        self.worker.ask(command)
        return self.worker.cpu_seconds() - before


def main() -> None:
    options = _options()
    with TemporaryDirectory(prefix="bringup-bench-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        commit = _git("rev-parse", "--short", options.commit)
        root = stack.enter_context(_laid_out(commit, scratch / "checkout"))
        sides = [Side(commit, root, scratch / "earlier"), Side("this checkout", ROOT, scratch / "this")]
        for side in sides:
            _is_imported(side)
        parts = options.part or PARTS
        checkpoint = _checkpoint(scratch / "gpt2") if parts != ["check"] else scratch
        heads = {name: scratch / "heads" / name for name in options.only or LARGE if "check" in parts}
        for name, at in heads.items():
            write_headers(name, at)
        for number in range(options.rounds + 1):  # the first does not count: it compiles byte code, opens workers
            for side in sides[number % 2 :] + sides[: number % 2]:
                _say(f"round {number} of {options.rounds}: {side.name}")
                side.round = number
                for what, seconds in _measured(side, parts, checkpoint, heads, stack):
                    side.seconds.setdefault(what, []).extend([seconds] if number else [])
    text, worst = _report(*sides, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    sys.exit(worst < options.least)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--part", action="append", choices=PARTS, help="what is measured; everything without it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=LEAST, metavar="RATIO")
    parser.add_argument("--only", action="append", choices=sorted(EVERY), help="the checkpoints to check")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table also goes here")
    return parser.parse_args()


def _measured(
    side: Side, parts: Sequence[str], checkpoint: Path, heads: dict[str, Path], stack: ExitStack
) -> Iterator[tuple[str, float]]:
    """What was measured, and processor seconds."""
    compiled = ["compile", "gpt2", "--checkpoint", checkpoint, "--target", "cpu", "--force", "-o"]
    if "compile" in parts:
        yield "compile, from nothing", side.command(*compiled, side.scratch / "a.bundle")
        yield "compile, from the cache", side.command(*compiled, side.scratch / "b.bundle")
    if "run" in parts:
        if side.worker is None:
            bundle = side.scratch / "run.bundle"
            side.command(*compiled, bundle)
            side.worker = stack.enter_context(Worker("bringup", "float32", bundle, LONG, side.env))
        yield "prefill of 512 tokens", side.answer_seconds("prefill")
        short, long = side.answer_seconds(f"decode {SHORT}"), side.answer_seconds(f"decode {LONG}")
        yield f"decode of {LONG - SHORT} tokens", long - short
    for name, at in heads.items():
        yield f"check, {name}", side.command("check", "--checkpoint", at)


@contextmanager
def _laid_out(commit: str, at: Path) -> Iterator[Path]:
    """The commit's files, until the end."""
    _git("worktree", "add", "--quiet", "--detach", str(at), commit)
    try:
        yield at
    finally:
        _git("worktree", "remove", "--force", str(at))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _is_imported(side: Side) -> None:
    """A side that is not what its processes import would make every ratio 1."""
    words = [sys.executable, "-c", "import bringup.compile; print(bringup.__file__, bringup.compile.__file__)"]
    found = subprocess.run(words, env=side.env, cwd=side.root, check=True, stdout=subprocess.PIPE, text=True).stdout
    if not all(Path(path).is_relative_to(side.root) for path in found.split()):
        raise RuntimeError(f"{side.name} is {side.root}, and its processes import {found.strip()}")


def _checkpoint(folder: Path) -> Path:
    """GPT-2 124M with seeded weights in float32, as a folder that both sides open."""
    job = open_job("gpt2", "dummy")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(job.config)), "utf-8")
    headers = job.checkpoint.headers
    write_weights(folder / "model.safetensors", list(headers.values()), lambda name: job.checkpoint.read(headers[name]))
    time.sleep(2 * SETTLED)  # a compile does not go by the state of a file that was just written
    return folder


def _report(earlier: Side, this: Side, rounds: int) -> tuple[str, float]:
    """The table, and the least ratio."""
    rows, ratios = list[str](), list[float]()
    for what, before in earlier.seconds.items():
        after = this.seconds[what]
        ratios.append(statistics.median(before) / statistics.median(after))
        each = [one / other for one, other in zip(before, after, strict=True)]
        rows.append(
            f"| {what} | {statistics.median(before):.2f} | {statistics.median(after):.2f} | {ratios[-1]:.2f} | "
            f"{min(each):.2f} to {max(each):.2f} |"
        )
    lines = [
        f"Processor seconds of {earlier.name} ({_git('log', '-1', '--format=%cs', earlier.name)}) and of "
        f"{_git('rev-parse', '--short', 'HEAD')}, medians of {rounds} rounds in which both ran in turn. GPT-2 124M in "
        "float32, target `cpu`; `check` of published checkpoints, headers only. Ratios above 1: less than before.",
        "",
        f"| | {earlier.name}, s | {_git('rev-parse', '--short', 'HEAD')}, s | ratio | of each round |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
        f"{datetime.now():%Y-%m-%d %H:%M}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end.",
        f"`python -m benchmarks.previous {' '.join(sys.argv[1:])}`",
    ]
    return "\n".join(lines) + "\n", min(ratios)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
