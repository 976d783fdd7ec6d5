"""Conversions in separate processes, which end at a named point or count the shards that they write."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

LEAST = 500  # bytes of a shard
TEXT = """
import os, signal, sys
import numpy as np
from safetensors.numpy import load_file
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.sources.dummy import dummy_checkpoint
from bringup.compile.convert import shards
from bringup.compile.convert.convert import convert
from bringup.compile.job import open_job
from bringup.adapters.apply.parallel import Parallel
shards.SHARD = {least}
add, point, before, count = shards.Staging.add, {point!r}, {before}, 0
def noted(self, key, digest):
    global count
    count += 1
    if point == "before the journal" and len(self.written) == before:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, key, digest)
    if point == "after the journal" and len(self.written) == before:
        os.kill(os.getpid(), signal.SIGKILL)
shards.Staging.add = noted
taken = shards.Staging.take_into
def take(self, folder, files):
    if point == "before the move":
        os.kill(os.getpid(), signal.SIGKILL)
    taken(self, folder, files)
    if point == "after the move":
        os.kill(os.getpid(), signal.SIGKILL)
shards.Staging.take_into = take
convert({job}, {out!r}, parallel=Parallel(tp={tp}), form={form!r})
print(count)
"""


def opening(source: Path, **more: object) -> str:
    """The text that opens a checkpoint's job."""
    return f"open_job(checkpoint={str(source)!r}{''.join(f', {key}={value!r}' for key, value in more.items())})"


def kill(job: str, out: Path, point: str, before: int = 3, tp: int = 1, form: str = "safetensors") -> None:
    """Begins the conversion of the job that the text `job` opens, and ends its process at `point`."""
    done = _run(job, out, point, before, tp, form)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()


def shards_written(job: str, out: Path) -> int:
    """How many shards a conversion to its end writes."""
    done = _run(job, out)
    assert done.returncode == 0, done.stderr
    assert not list(out.parent.glob(f".{out.name}.resume")), "the staging is gone"
    return int(done.stdout)


def _run(
    job: str, out: Path, point: str = "", before: int = 3, tp: int = 1, form: str = "safetensors"
) -> subprocess.CompletedProcess[str]:
    text = TEXT.format(least=LEAST, point=point, before=before, job=job, out=str(out), tp=tp, form=form)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
