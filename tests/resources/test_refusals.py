"""Folders that may not be written, and Ctrl-C: one error or one line, and nothing is left."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bringup.adapters.checkpoints.files import opened
from bringup.compile.bundle.manifest import program_of
from bringup.diagnostics import BringupError
from bringup.system.os_errors import refused
from tests.cli.conftest import SMALL
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.resources.compiles import names, processes_on, temporary, tokens_of

NOBODY = 65534
ROOT = Path(__file__).parents[2]


def without_privileges() -> None:
    """Root's rights over the files of others are given up; the interpreter's own stay readable. See capset(2)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


def test_a_folder_of_somebody_else(nursery, checkpoints, tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    out = tmp_path / "o" / "b"
    words = ["compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", out]
    assert nursery.run(*words).code == 0
    before = tokens_of(out)
    os.chown(out.parent, NOBODY, NOBODY)
    ended = nursery.run(*words, "--force", before="tests.resources.test_refusals:without_privileges")
    assert (ended.code, ended.said.count("error[BU901]")) == (3, 1), ended.said
    assert "Exported" not in ended.said, "told before anything is done"
    assert names(out.parent) == ["b"]
    assert tokens_of(out) == before


@pytest.mark.parametrize(
    ("words", "finding"),
    [
        (("check", "--format", "json=r.json"), "error[BU021]: cannot write the report `r.json`: `.`"),
        (("lock", "gpt2", "-o", "plan.lock"), "error[BU901]: cannot write `plan.lock`: `.`"),
        (("convert", "-o", "arrays"), "error[BU901]: cannot write `arrays`: `{}`"),
        (("export", "-o", "published"), "error[BU901]: cannot write `published`: `{}`"),
        (("init", "-o", "draft"), "error[BU901]: cannot write `draft`: `{}`"),
    ],
)
def test_a_folder_that_may_not_be_written(tmp_path: Path, words: tuple[str, ...], finding: str) -> None:
    """The error has the name that the user gave, and states what to do."""
    checkpoint = write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), gpt2_config(**SMALL))
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    code = "import sys; from tests.resources.test_refusals import without_privileges; without_privileges()"
    code += "; from bringup.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--checkpoint", checkpoint],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (2 if "BU021" in finding else 3), done.stderr
    assert f"{finding.format(folder)} is not writable by this user\n  = help: " in done.stderr
    assert ".part" not in done.stderr


def test_a_read_only_file_system(nursery, checkpoints, tmp_path):
    out = tmp_path / "o" / "b"
    words = ["compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", out]
    assert nursery.run(*words).code == 0
    before = tokens_of(out)
    mounts = [["mount", "--bind", out.parent, out.parent], ["mount", "-o", "remount,bind,ro", out.parent]]
    for mount in mounts:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        ended = nursery.run(*words, "--force")
    finally:
        subprocess.run(["umount", out.parent], check=True)
    assert (ended.code, ended.said.count("error[BU901]")) == (3, 1), ended.said
    assert names(out.parent) == ["b"]
    assert tokens_of(out) == before


def without_end() -> None:
    """A compile exports again and again: it does not end before the signal comes, however late that is."""
    from bringup.compile import pipeline

    export = pipeline.encoded_program

    def repeated(*given: Any) -> NoReturn:
        while True:
            export(*given)

    pipeline.encoded_program = repeated


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, *(pytest.param(sent, marks=pytest.mark.slow) for sent in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_while_waiting(nursery, checkpoints, tmp_path, sent):
    """A signal, and more of them while it cleans up: one line, 128 and the signal's number, nothing left."""
    out = tmp_path / "o" / "b"
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ["compile", "--checkpoint", checkpoints[0], "--target", "torch", "-o", out]
    before = "tests.resources.test_refusals:without_end"
    running = nursery.start(*words, environment=environment, before=before)
    while not running.errors.exists() or "Checked" not in running.errors.read_text():
        time.sleep(0.01)
    for _ in range(3):
        os.kill(running.pid, sent)
    ended = running.wait()
    assert ended.code == 128 + sent
    assert ended.said.splitlines()[-1] == f"stopped by {sent.name}; partial files were removed"
    assert "Traceback" not in ended.said
    assert names(tmp_path) in ([], ["cache"])
    assert names(temporary(nursery.folder)) == []
    assert processes_on(tmp_path) == []


class Refused(RuntimeError):
    """What a tool's failure is told with."""

    log = "LLVM ERROR: out of memory\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "BU902"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "BU902"),
        (RuntimeError("[enforce fail at inline_container.cc:858] . No space left on device"), "BU902"),
        (MemoryError("Unable to allocate 8.00 GiB for an array"), "BU903"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "BU903"),
        (OSError(errno.EMFILE, "Too many open files"), "BU901"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: …"), "BU903"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "BU903"),
        (RuntimeError("iree-compile ended with code -9 and no error line"), "BU903"),
        (Refused("iree-compile ended with code -6 and no error line"), "BU903"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("out of memory"), None),
    ],
)  # fmt: skip
def test_what_the_machine_says_in_its_many_ways(error, code):
    found = refused(error)
    assert (found.findings[0].code if found else None) == code
    wrapped = ZeroDivisionError()
    wrapped.__cause__ = error
    again = refused(wrapped)
    assert (again.findings[0].code if again else None) == code
    assert found is None or BringupError.exit_code.fget(found) == 3


def failed(error: OSError, cause: OSError | None = None) -> str:
    """The code of the finding if loading a bundle's program fails like this, with its message."""

    def load() -> None:
        with program_of(Path("b"), {}):
            raise error from cause

    with pytest.raises(BringupError) as raised:
        load()
    return str(raised.value)


def test_the_line_of_a_message_that_reports_a_lack_of_memory():
    """numpy puts the loader's reason behind a page of advice."""
    reason = "Original error was: libx.so: failed to map segment from shared object"
    found = refused(ImportError(f"\n\nIMPORTANT: read this advice\n\n{reason}\n"))
    assert found
    assert found.findings[0].message == f"out of memory: {reason}"


def test_too_many_open_files(tmp_path):
    """The error names the limit, not the file that happened to be opened."""
    (tmp_path / "config.json").write_text("{}")
    held, (soft, hard) = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(BringupError) as raised, opened(tmp_path / "config.json"):
            pass
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (found,) = raised.value.findings
    assert (found.code, found.message) == (
        "BU901",
        f"too many open files: the limit of this process is {min(soft, 200)}",
    )
    assert "ulimit -n" in found.help


def test_a_program_without_room_for_its_libraries() -> None:
    """llvmlite reports that the loader found no address space, and only the exception before it states the reason."""
    reason = OSError("libllvmlite.so: failed to map segment from shared object")
    text = failed(OSError("Could not find/load shared object file 'libllvmlite.so'"), reason)
    assert text.startswith("BU903: out of memory: libllvmlite.so: failed to map segment")
    assert failed(OSError("`kernels.o` is not an object file")).startswith("BU603")
