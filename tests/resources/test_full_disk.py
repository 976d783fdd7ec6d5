"""Every write of a compile fails once: one error, exit 3, no leftovers, and the old bundle as it was."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.cli.main import cli
from bringup.compile.bundle.folder import check_files, read_manifest
from tests.resources.compiles import names, tokens_of
from tests.resources.faults import fault

CODES = {errno.ENOSPC: "BU902", errno.EDQUOT: "BU902", errno.EROFS: "BU901", errno.EIO: "BU901"}
Compile = Callable[[Path], int]


@pytest.fixture
def compiled(tmp_path, monkeypatch, checkpoints) -> Compile:
    """Compiles a checkpoint over the bundle in `o`, in this process; gives the exit code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BRINGUP_COMPILE_CACHE")
    (tmp_path / "o").mkdir()

    def run(checkpoint: Path) -> int:
        shutil.rmtree(tmp_path / "cache" / "bringup" / "compile" / "weights", ignore_errors=True)  # lest they be linked
        words = ["compile", "--checkpoint", str(checkpoint), "--target", "torch", "-o", str(tmp_path / "o" / "b")]
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--force"])
        return int(ended.value.code or 0)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "step"),
    [(errno.ENOSPC, 1), (errno.ENOSPC, 6), (errno.EDQUOT, 13), (errno.EROFS, 13), (errno.EIO, 20)],
)
def test_every_write_fails(compiled, checkpoints, tmp_path, capsys, code, step):
    """Every one, or one in `step` of them."""
    out = tmp_path / "o" / "b"
    assert compiled(checkpoints[0]) == 0
    with fault(0, code) as counting:
        assert compiled(checkpoints[0]) == 0
    before, inode = tokens_of(out), out.stat().st_ino
    exercised = set[str]()
    for number in range(1, len(counting.calls) + 1, step):
        capsys.readouterr()
        with fault(number, code) as struck:
            ended = compiled(checkpoints[0])
        said = capsys.readouterr().err
        assert struck.struck, f"write {number} of {len(counting.calls)} was not made"
        assert names(out.parent) == ["b"], struck.struck
        if "/cache/" in struck.struck and ended == 0:  # a cache that cannot be written fails no compile
            inode = out.stat().st_ino
            continue
        exercised.add(Path(struck.struck).name)
        assert (ended, said.count("error[")) == (3, 1), (struck.struck, said)
        assert f"error[{CODES[code]}]" in said, (struck.struck, said)
        assert out.stat().st_ino == inode
        check_files(out, read_manifest(out))
    assert tokens_of(out) == before
    print(f"{len(counting.calls)} writes, failed one in {step}")
    assert step > 1 or exercised >= {
        "weights.safetensors",
        "manifest.json",
        ".b.lock",
        ".b.part",
        "o",
    }


def test_the_first_compile_leaves_nothing(compiled, checkpoints, tmp_path):
    """Not even the folder that it made for the bundle."""
    assert compiled(checkpoints[0]) == 0
    shutil.rmtree(tmp_path / "o")
    for number in (1, 7, 20):
        with fault(number, errno.ENOSPC) as struck:
            assert compiled(checkpoints[0]) == 3, struck.struck
        assert names(tmp_path) == ["cache"]


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of one megabyte."""
    place = tmp_path / "o"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_small_disk(small_disk, nursery, checkpoints, tmp_path):
    """The kernel says no, at moments that no list of calls foresees: the disk is filled up more and more."""
    words = ["compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", small_disk / "b"]
    assert nursery.run(*words).code == 0
    before = tokens_of(small_disk / "b")
    outcomes = set()
    for spare in (600_000, 60_000, 8_000, 0):
        stat = os.statvfs(small_disk)
        (small_disk / "filler").write_bytes(bytes(max(stat.f_bavail * stat.f_frsize - spare, 0)))
        ended = nursery.run(*words, "--force")
        (small_disk / "filler").unlink()
        outcomes.add(ended.code)
        assert names(small_disk) == ["b"]
        assert tokens_of(small_disk / "b") == before
        if ended.code:
            assert ended.said.count("error[BU902]") == 1, ended.said
            assert ended.code == 3
    assert 3 in outcomes


@pytest.mark.slow
def test_room_is_reserved_before_writing(small_disk, nursery, checkpoints):
    (small_disk / "filler").write_bytes(bytes(1000 << 10))
    ended = nursery.run("compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", small_disk / "b")
    assert ended.code == 3
    assert "bytes are to be written" in ended.said
    assert names(small_disk) == ["filler"]


@pytest.mark.slow
def test_a_limit_on_file_sizes(nursery, checkpoints, tmp_path):
    """`ulimit -f`: the kernel sends SIGXFSZ, which Python ignores, and the write fails with EFBIG."""
    (tmp_path / "o").mkdir()
    ended = nursery.run(
        "compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", tmp_path / "o" / "b", limit=[None, 16000]
    )
    assert (ended.code, ended.said.count("error[BU902]")) == (3, 1), ended.said
    assert names(tmp_path / "o") == []
