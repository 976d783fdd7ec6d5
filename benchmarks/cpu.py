"""GPT-2 on this machine's CPU: bringup's target `cpu`, transformers and torch.compile, in turns. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.client import Others, Worker, WorkerError
from benchmarks.figures import Result, Turn
from benchmarks.report import report
from benchmarks.workers import CONTENDERS, LONG
from bringup import open_job
from bringup.compile.bench.bandwidth import Probe
from bringup.compile.bundle.weights_file import write_weights
from bringup.system.processors import processors

SETTLE = 0.1  # seconds in which the threads of the last turn go to sleep


def main() -> None:
    options = _options()
    began = time.perf_counter()
    with TemporaryDirectory(prefix="bringup-bench-") as scratch, ExitStack() as stack:
        # A new cache folder: nothing here was compiled before.
        os.environ |= {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": f"{scratch}/cache"}
        running: list[tuple[Result, Worker]] = []
        failures: list[str] = []
        for dtype in options.dtypes:
            folder = Path(scratch, dtype)
            nbytes = _checkpoint(folder, dtype)
            for name in options.contenders:
                result = Result(name, dtype, nbytes)
                try:
                    worker = stack.enter_context(_started(result, folder, options))
                except (WorkerError, subprocess.CalledProcessError) as error:
                    failures.append(f"{name}, {dtype}, did not run: {error}")
                    continue
                running.append((result, worker))
        probes = _rounds(running, options)
    results = [result for result, _ in running]
    text = report(results, failures, probes, options.decode, time.perf_counter() - began)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")


def _options() -> argparse.Namespace:
    def several(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            names = text.split(",")
            if not set(names) <= set(known):
                raise argparse.ArgumentTypeError(f"known are {', '.join(known)}")
            return names

        return parse

    def lengths(text: str) -> list[int]:
        short, long = (int(word) for word in text.split(","))
        if not 1 <= short < long <= LONG:
            raise argparse.ArgumentTypeError(f"two lengths, 1 <= N1 < N2 <= {LONG}")
        return [short, long]

    dtypes = ("float32", "bfloat16")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--decode", type=lengths, default=[32, 160], metavar="N1,N2", help="decoded tokens of two runs")
    parser.add_argument("--dtypes", type=several(dtypes), default=list(dtypes), metavar=",".join(dtypes))
    names = list(CONTENDERS)
    parser.add_argument("--contenders", type=several(names), default=names, metavar=",".join(names))
    parser.add_argument("--skip-compile-time", action="store_true", help="compile once only: no repeated compile")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report also goes here")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _checkpoint(folder: Path, dtype: str) -> int:
    """Writes seeded GPT-2 weights as a folder that every contender opens. Gives the bytes that decoding a token reads.

    Those are all weights but the position table, of which one row is read; the tied embedding counts once, as the head.
    """
    job = open_job("gpt2", "dummy", dtype=dtype)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(job.config)), "utf-8")
    headers = job.checkpoint.headers
    write_weights(folder / "model.safetensors", list(headers.values()), lambda name: job.checkpoint.read(headers[name]))
    unread = {"transformer.wpe.weight", *job.plan.aliases()}
    return sum(weight.nbytes for name, weight in job.plan.signature.items() if name not in unread)


def _started(result: Result, checkpoint: Path, options: argparse.Namespace) -> Worker:
    """A worker that is ready to be timed; what it took goes into `result`."""
    _say(f"preparing {result.name}, {result.dtype}")
    runs = 1 if options.skip_compile_time else 2
    path, env = checkpoint, {"TORCHINDUCTOR_CACHE_DIR": f"{checkpoint}.inductor"}
    if result.name == "bringup":
        path = checkpoint.with_suffix(".bundle")
        for _ in range(runs):
            _compiled(result, _compile_bundle(checkpoint, path))
    worker = Worker(result.name, result.dtype, path, options.decode[1], env)
    result.import_seconds, result.load_seconds = worker.import_seconds, worker.load_seconds
    worker.ask("compile")
    if result.name == "torch.compile":
        _compiled(result, time.perf_counter() - worker.started)
        if runs == 2:
            worker.close()
            worker = Worker(result.name, result.dtype, path, options.decode[1], env)
            worker.ask("compile")
            _compiled(result, time.perf_counter() - worker.started)
    result.tokens = worker.ask("prefill")[1] + worker.ask(f"decode {options.decode[1]}")[1]
    return worker


def _compiled(result: Result, seconds: float) -> None:
    if result.compiled is None:
        result.compiled = seconds
    else:
        result.repeated = seconds


def _compile_bundle(checkpoint: Path, out: Path) -> float:
    """Seconds of the whole command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "bringup", "compile", "gpt2", "--checkpoint", str(checkpoint)]
    subprocess.run([*command, "--target", "cpu", "-o", str(out), "--force"], check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def _rounds(running: Sequence[tuple[Result, Worker]], options: argparse.Namespace) -> list[float]:
    """Times every worker in every round, each round beginning with another one. Gives all bandwidths."""
    short, long = options.decode
    probe = Probe(processors())
    probes = [probe.bytes_per_second() / 1e9]
    for number in range(options.rounds):
        _say(f"round {number + 1} of {options.rounds}")
        at = number % max(len(running), 1)
        for result, worker in (*running[at:], *running[:at]):
            others = Others(worker)
            prefill, _ = worker.ask("prefill")
            first, _ = worker.ask(f"decode {short}")
            second, _ = worker.ask(f"decode {long}")
            busy = others.share()
            time.sleep(SETTLE)
            probes.append(probe.bytes_per_second() / 1e9)
            result.turns.append(Turn(LONG / prefill, (long - short) / (second - first), sum(probes[-2:]) / 2, busy))
    return probes


if __name__ == "__main__":
    main()
