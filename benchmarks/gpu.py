"""Kernels and models on a GPU: errors compared with float64 and transformers, times with those of other programs.

`python -m benchmarks.gpu` on a machine with a GPU; it needs no network. METHOD.md describes the method. `--dry-run`
runs the correctness part with tiny models in the emulator, on any machine.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.cards import correctness, speed
from benchmarks.cards.rows import CHECKED, DRY, PREFILL, TIMED
from benchmarks.cards.tables import markdown
from bringup.compile.gpu.driver.cuda import CudaDriver
from bringup.compile.gpu.opening import driver_module, runs_on
from bringup.compile.kernels.architectures import ARCHITECTURES, is_nvidia
from bringup.diagnostics import BringupError, fail

PACKAGES = ("bringup", "torch", "triton", "transformers", "cuda-bindings", "numpy")
PARTS = ("correctness", "speed")
BUDGET = 480.0  # seconds of a part after which no other row begins
DRY_CAPABILITY = "sm_90"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _card() -> tuple[str, str, str]:
    """The card's name, the newest target that runs on it, and the CUDA version of its driver.

    Raises BU614 where there is no card, BU615 where no target runs on it.
    """
    driver = CudaDriver(driver_module())
    architecture = driver.architecture
    name, version = driver.name, ".".join(map(str, driver.version))
    driver.close()
    return name, target_of(architecture), version


def target_of(architecture: str) -> str:
    """The newest of our targets that runs on a card of an architecture: sm_86 on sm_87."""
    fitting = [name for name in ARCHITECTURES if is_nvidia(name) and runs_on(name, architecture)]
    if not fitting:
        raise fail("BU615", f"no target runs on a card of {architecture}")
    return max(fitting, key=lambda name: int(name.removeprefix("sm_").rstrip("af")))


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a comparison is past its limit, or 2 without a card."""
    names = [row.name for row in (*TIMED, PREFILL)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="one part alone (repeatable)")
    checked = [model.name for model in CHECKED]
    parser.add_argument("--model", choices=checked, action="append", help="a model of correctness alone (repeatable)")
    parser.add_argument("--row", choices=names, action="append", default=[], help="a row of speed alone (repeatable)")
    parser.add_argument("--out", type=Path, help="the results: this path with .json and .md behind it")
    parser.add_argument("--dry-run", action="store_true", help="correctness of tiny models in the emulator")
    given = parser.parse_args(arguments)
    begin = time.perf_counter()
    if given.dry_run:
        device, capability, cuda, parts = "the emulator", DRY_CAPABILITY, "", ("correctness",)
    else:
        try:
            device, capability, cuda = _card()
        except BringupError as error:
            finding = error.findings[0]
            print(f"{finding.code}: {finding.message}; `--dry-run` checks kernels in the emulator", file=sys.stderr)
            return 2
        parts = given.part or PARTS
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    about = {name: _version(name) for name in PACKAGES} | {"Python": platform.python_version()}
    results: dict[str, Any] = {"device": device, "about": about | ({"CUDA driver": cuda} if cuda else {})}
    work: dict[str, Iterator[dict[str, Any]]] = {}
    if given.dry_run:
        work["correctness"] = correctness.rows(DRY, capability, "emulate", ("float32",), correctness.DRY, math.inf)
    elif "correctness" in parts:
        dtypes = "float32", "bfloat16"
        models = [model for model in CHECKED if model.name in (given.model or checked)]
        work["correctness"] = correctness.rows(models, capability, "gpu", dtypes, correctness.ON_CARD, BUDGET)
    if "speed" in parts:
        work["speed"] = speed.rows(capability, given.row, BUDGET)
    text = ""
    for part, rows in work.items():
        results[part] = []
        for row in rows:  # written after each row: a run that is ended has those before
            results[part].append(row)
            results["about"] |= {
                "date": f"{datetime.now():%Y-%m-%d %H:%M}",
                "minutes": f"{(time.perf_counter() - begin) / 60:.1f}",
            }
            text = markdown(results)
            if given.out:
                Path(f"{given.out}.json").write_text(json.dumps(results, indent=1), "utf-8")
                Path(f"{given.out}.md").write_text(text, "utf-8")
    print(text)
    return int(not all(row["ok"] for row in results.get("correctness", [])))


if __name__ == "__main__":
    sys.exit(main())
