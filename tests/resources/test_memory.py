"""Memory: what `--dry-run` states is kept, and a lack of it is one error that leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bringup.adapters.checkpoints.arrays import mapped, release_pages
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import open_job
from tests.resources.compiles import TINY, names, temporary

MIDDLING = TINY | {"n_layer": 4, "n_head": 16, "n_embd": 1024, "n_positions": 64, "vocab_size": 12_000}  # 250 MB
SILLY = 0.4  # a bound of which less than this share is used says nothing

POLL = 0.005  # seconds


def measured(words: list[str | Path], cache: Path) -> list[int]:
    """The exit code, the peak memory of this command line, and that of its largest child process, in bytes."""
    done = subprocess.Popen(
        [sys.executable, "-m", "bringup", *words], env={"XDG_CACHE_HOME": str(cache), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    peaks = {done.pid: 0}
    while done.poll() is None:
        for process in (done.pid, *children(done.pid)):
            peaks[process] = peak(process) or peaks.get(process, 0)
        time.sleep(POLL)
    return [done.returncode, peaks.pop(done.pid), max(peaks.values(), default=0)]


def children(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []  # a process or a thread that has ended


def peak(process: int) -> int:
    """Bytes since its last exec; 0 if it has ended. `ru_maxrss` would begin with what it shared with its parent."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"), [("file", "torch"), ("dummy", "torch"), ("file", "cpu"), ("file", "iree-cpu")]
)
def test_dry_run_states_the_peak_memory(tmp_path, source, target):
    (tmp_path / "config.json").write_text(json.dumps(MIDDLING))
    job = open_job("gpt2", "dummy", config=str(tmp_path / "config.json"))
    words = ["compile", "gpt2", "--config", tmp_path / "config.json", "--checkpoint", "dummy"]
    if source == "file":
        save_file(
            {name: np.ones(info.shape, np.float32) for name, info in job.checkpoint.headers.items()},
            tmp_path / "model.safetensors",
        )
        job = open_job(checkpoint=str(tmp_path))
        words = ["compile", "--checkpoint", tmp_path]
    stated = dry_run(job, target, None).compiling
    code, process, subprocess_peak = measured([*words, "--target", target, "-o", tmp_path / "b"], tmp_path / "cache")
    print(f"{source} {target}: {process:,} of {stated.process:,}, {subprocess_peak:,} of {stated.subprocess_peak:,}")
    assert code == 0
    assert SILLY * stated.process <= process <= stated.process
    assert SILLY * stated.subprocess_peak <= subprocess_peak <= stated.subprocess_peak


def test_pages_of_a_checkpoint_are_given_back(tmp_path):
    """And only those of the tensor itself: what was written to its neighbours stays."""
    save_file({name: np.full((1000, 1001), ord(name), np.float32) for name in "abc"}, tmp_path / "w.safetensors")
    arrays = {name: mapped(tmp_path / "w.safetensors", info) for name, info in
              read_header(tmp_path / "w.safetensors").items()}  # fmt: skip
    arrays["a"][...], arrays["c"][...] = 7, 8
    before = resident()
    assert arrays["b"].sum() == 1000 * 1001 * ord("b")
    assert resident() - before > 3_500_000
    release_pages(arrays["b"])
    assert resident() - before < 500_000
    assert (arrays["a"] == 7).all()
    assert (arrays["c"] == 8).all()
    assert (arrays["b"] == ord("b")).all()


def resident() -> int:
    """Bytes of files that are in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


@pytest.mark.parametrize(
    "megabytes",
    [*(pytest.param(size, marks=pytest.mark.slow) for size in (850, 900, 950, 1000, 1100, 1400, 1800, 3000)), 300],
)
def test_a_limit_on_memory(nursery, checkpoints, tmp_path, megabytes):
    """`ulimit -v`, in a process that holds torch already: the compile succeeds or says BU903."""
    out = tmp_path / "o" / "b"
    ended = nursery.run(
        "compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", out,
        limit=[megabytes << 20, None], environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ended.code in {300: (3,), 3000: (0,)}.get(megabytes, (0, 3)), ended
    if ended.code:
        assert ended.said.count("error[") == ended.said.count("error[BU903]") == 1, ended.said
        assert names(tmp_path) == []
    assert names(temporary(nursery.folder)) == []
