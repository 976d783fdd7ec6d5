"""The compile time of GPT-2: from nothing, again, and after an edit of one layer's forward. See README.md.

Every figure is the elapsed time of a process, including interpreter and imports, until the model can run, and the
processor time of the process and its children. Byte code is cached, as it is for users: a first round, which is not
counted, writes it to a separate folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bringup import open_job
from bringup.compile.bundle.weights_file import write_weights
from bringup.compile.cache.file_identity import SETTLED
from bringup.graphs import gpt2
from bringup.system.processors import processors

HERE = Path(__file__).parent
CASES = ("from nothing", "again, the same place", "again, elsewhere", "after an edit")


class Seconds(NamedTuple):
    """Of the wall, and of all processors."""

    wall: float
    processors: float


Times = dict[str, Seconds]

# What makes graphs/gpt2.py a model file of the user's own.
FAMILY = """

from bringup.adapters.gpt2 import adapter
from bringup.graphs.family import Family

family = Family(name="gpt2", graph=GPT2, config=GPT2Config, adapter=adapter)
"""
FORWARD = "        x_Nm = x_Nm + self.attn(self.ln_1(x_Nm), step)\n"
EDITED = "        x_Nm = x_Nm + 1.5 * self.attn(self.ln_1(x_Nm), step)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target", help="bringup alone, for this target")
    parser.add_argument("--max-python", metavar="PYTHON", help="an interpreter that has Modular's `max`")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table also goes here")
    options = parser.parse_args()
    contenders: dict[str, Callable[[Path, Path], Times]] = {"bringup": _bringup, "torch.compile": _torch}
    if options.target:
        contenders = {options.target: partial(_bringup, target=options.target)}
    elif options.max_python:
        contenders["MAX"] = lambda scratch, checkpoint: _max(options.max_python, scratch, checkpoint)
    seen: dict[str, list[Times]] = {name: [] for name in contenders}
    with TemporaryDirectory(prefix="bringup-bench-") as folder:
        checkpoint = Path(folder, "gpt2")
        _write(checkpoint)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
        for number in range(options.rounds + 1):
            for name, run in contenders.items():
                print(f"round {number} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                with TemporaryDirectory(prefix="bringup-bench-") as scratch:
                    times = run(Path(scratch), checkpoint)
                    seen[name] += [times] if number else []
    text = _table(seen)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")


def _write(checkpoint: Path) -> None:
    """Seeded GPT-2 124M in float32, as a folder that every contender opens."""
    job = open_job("gpt2", "dummy")
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(dict(job.config)), "utf-8")
    headers = job.checkpoint.headers
    write_weights(
        checkpoint / "model.safetensors", list(headers.values()), lambda name: job.checkpoint.read(headers[name])
    )
    _settle()


def _settle() -> None:
    """A compile caches nothing that depends on a file which was just written."""
    time.sleep(2 * SETTLED)


def _bringup(scratch: Path, checkpoint: Path, target: str = "cpu") -> Times:
    model = scratch / "my_gpt2.py"
    source = Path(gpt2.__file__).read_text("utf-8")
    assert FORWARD in source
    model.write_text(source + FAMILY, "utf-8")
    _settle()
    command = [sys.executable, "-m", "bringup", "compile", str(model), "--checkpoint", str(checkpoint)]
    command += ["--target", target]
    places = {"BRINGUP_COMPILE_CACHE": str(scratch / "cache")}

    def compiled(name: str) -> Seconds:
        return _seconds([*command, "-o", str(scratch / name)], places)

    nothing, same, elsewhere = compiled("a.bundle"), compiled("a.bundle"), compiled("b.bundle")
    model.write_text((source + FAMILY).replace(FORWARD, EDITED), "utf-8")
    _settle()
    return dict(zip(CASES, (nothing, same, elsewhere, compiled("c.bundle")), strict=True))


def _torch(scratch: Path, checkpoint: Path) -> Times:
    """transformers' model, its forward compiled for 512 tokens and for one; its cache knows no places."""
    command = [sys.executable, "-m", "benchmarks.compile_torch", str(checkpoint)]
    places = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"), "HF_HUB_OFFLINE": "1"}
    nothing, again = _seconds(command, places), _seconds(command, places)
    edited = _seconds([*command, "edited"], places)
    return {CASES[0]: nothing, CASES[2]: again, CASES[3]: edited}


def _max(python: str, scratch: Path, checkpoint: Path) -> Times:
    """The same model on MAX's API, one graph of the whole sequence; its cache knows no places."""
    command = [python, str(HERE / "compile_max.py"), str(checkpoint)]
    places = {"HOME": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache")}
    nothing, again = _seconds(command, places), _seconds(command, places)
    edited = _seconds([*command, "edited"], places)
    return {CASES[0]: nothing, CASES[2]: again, CASES[3]: edited}


def _seconds(command: list[str], places: dict[str, str]) -> Seconds:
    start, worked = time.perf_counter(), _worked()
    subprocess.run(command, env=os.environ | places, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    return Seconds(time.perf_counter() - start, _worked() - worked)


def _worked() -> float:
    """Seconds of processors for the processes that have ended, with those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _table(seen: dict[str, list[Times]]) -> str:
    rows = [
        f"GPT-2 124M float32, {processors()} cores, whole processes; median (least to most) seconds of "
        f"{_rounds(seen)}, and the median of processor seconds",
        "",
    ]
    rows += [f"| | {' | '.join(seen)} |", f"|---|{'---|' * len(seen)}"]
    for case in CASES:
        rows.append(
            f"| {case} | {' | '.join(_cell([t[case] for t in times if case in t]) for times in seen.values())} |"
        )
    return "\n".join(rows)


def _rounds(seen: dict[str, list[Times]]) -> str:
    count = len(next(iter(seen.values())))
    return f"{count} round{'' if count == 1 else 's'}"


def _cell(values: list[Seconds]) -> str:
    if not values:
        return "-"
    walls = [each.wall for each in values]
    worked = statistics.median(each.processors for each in values)
    return f"{statistics.median(walls):.1f} ({min(walls):.1f} to {max(walls):.1f}), {worked:.1f} of processors"


if __name__ == "__main__":
    main()
