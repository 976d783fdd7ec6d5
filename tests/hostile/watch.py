"""Runs `bringup` in a separate process and observes its output, its use of resources, and the files that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bringup.cli.main import cli
from tests import PATIENCE

SECONDS = 1.0  # what the issue allows for one hostile file
START = 0.5  # the interpreter and our modules, which take 0.2 s on an idle machine
MEGABYTES = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process did. `seconds` are of the processor: other processes' load does not count."""

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float
    findings: list[dict[str, Any]] = field(default_factory=list)


# Between the tests and the command stands a small process: the kernel counts a child's memory from its parent's on.
LAUNCH = """
import json, os, resource, signal, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
signal.alarm(%d)
_, status, usage = os.wait4(child, 0)
told = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
print(json.dumps(told), file=sys.stderr)
"""


def watched(*words: str | Path, stdin: int | None = subprocess.DEVNULL) -> Seen:
    """Runs `bringup` with these words."""
    command = [sys.executable, "-m", "bringup", *map(str, words)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCH % PATIENCE, *command],
        stdin=stdin,
        capture_output=True,
        text=True,
        check=True,
        env=_plain(),
    )
    err, _, figures = done.stderr.rstrip().rpartition("\n")
    code, seconds, megabytes = json.loads(figures)
    return Seen(code, done.stdout, err, seconds, megabytes)


def check(*words: str | Path, stdin: int | None = subprocess.DEVNULL) -> Seen:
    """`bringup check --format json`, its findings read."""
    seen = watched("check", *words, "--format", "json", stdin=stdin)
    assert "Traceback" not in seen.err, seen.err
    return Seen(seen.code, seen.out, seen.err, seen.seconds, seen.megabytes, json.loads(seen.out)["findings"])


def called(*words: str | Path) -> Seen:
    """The same in this process, for what takes neither time nor memory."""
    start = time.process_time()
    done = CliRunner().invoke(cli, [*map(str, words), "--format", "json"])
    assert "Traceback" not in done.stderr, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return Seen(done.exit_code, done.stdout, done.stderr, time.process_time() - start, 0.0, findings)


def assert_one_error(seen: Seen, code: str) -> None:
    """One error of that code, beside that of a folder without a config, in time and within memory."""
    errors = [finding["code"] for finding in seen.findings if finding["severity"] == "error"]
    assert [error for error in errors if error in (code, "BU127")] == errors
    assert errors.count(code) == 1, seen.out[:2000] + seen.err[:2000]
    assert seen.code in (1, 2)
    assert seen.seconds < SECONDS + START
    assert seen.megabytes < MEGABYTES


def _plain() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "FORCE_COLOR"))}
    return variables | {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
