"""Runs the command line in a separate process: its output, its peak memory, and the modules that it imported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Peak memory from the kernel's high-water mark: ru_maxrss would begin with what the process had before exec.
SCRIPT = """
import json, sys
from bringup.cli.main import main
try:
    main()
except SystemExit as end:
    status = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("VmHWM"))
    tops = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps([end.code, int(status["VmHWM"].split()[0]) * 1024, tops]), file=sys.stderr)
"""


@dataclass(frozen=True)
class Measured:
    code: int
    peak: int  # bytes
    modules: frozenset[str]
    report: dict[str, Any]  # of `check --format json`


def check(folder: Path, *words: str) -> Measured:
    """`bringup check` of a folder."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "check", "--checkpoint", folder, "--format", "json", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    code, peak, modules = json.loads(done.stderr.splitlines()[-1])
    return Measured(code, peak, frozenset(modules), json.loads(done.stdout))
