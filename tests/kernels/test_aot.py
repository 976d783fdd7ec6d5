"""Kernels compiled ahead of time: cached by what they depend on, and one error for all failures."""

from __future__ import annotations

import fcntl
import json
import signal
import termios
import time
from array import array
from dataclasses import replace

import pytest

from bringup.compile.cache.store import Store
from bringup.compile.kernels import aot
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.architectures import ARCHITECTURES
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.compiled import compiled_from_json, compiled_to_json, kernel_from_json, kernel_to_json
from bringup.compile.kernels.resources import resources
from bringup.diagnostics import BringupError
from tests.kernels.test_attention import CASES, call_of, data_of

pytestmark = pytest.mark.usefixtures("fresh_triton")
SIZES = {"BK": 16, "CHUNK": 16, "F": 6, "K": 16, "PR": 4, "R": 4, "SHARE": 2, "X_STRIDE": 16}
ROWS = Kernel(
    stem="to_blocks", types=("*fp32", "*i64", "*fp32"), constants=tuple(sorted(SIZES.items())), aligned=(0, 1, 2)
)


def test_a_kernel_is_compiled_once(tmp_path, monkeypatch):
    store = Store(tmp_path)
    (first,) = compile_kernels([ROWS, ROWS], "sm_80", store).values()
    assert first.types == (*ROWS.types, "*i8", "*i8")
    assert (first.name, first.threads, first.global_scratch_size) == ("to_blocks", 128, 0)
    assert first.binary.startswith(b"\x7fELF")
    assert '.file\t1 "bringup/compile/kernels/source/to_blocks.py"' in first.assembly
    assert "fma.rn.f32" not in first.assembly
    assert compiled_from_json(json.loads(json.dumps(compiled_to_json(first)))) == first
    assert kernel_from_json(json.loads(json.dumps(kernel_to_json(ROWS)))) == ROWS
    monkeypatch.setattr(aot, "_compiled", lambda kernels, _: pytest.fail("compiled again") if kernels else ())
    assert compile_kernels([ROWS], "sm_80", store) == {ROWS: first}


def test_settings_of_triton_do_not_count(monkeypatch):
    """Of the environment: the cache's key has none of them."""
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (found,) = compile_kernels([ROWS], "sm_90", None).values()
    assert ".loc" in found.assembly


def test_a_process_compiles_for_several_architectures():
    """The bytes are those of a process that compiled nothing before."""
    with aot._worker() as worker:
        found = [worker(ROWS, capability) for capability in ("gfx942", "sm_80", "sm_90")]
    assert [each.capability for each in found] == ["gfx942", "sm_80", "sm_90"]
    assert compile_kernels([ROWS], "sm_90", None) == {ROWS: found[-1]}


def test_a_kernel_of_the_same_name_has_its_own_bytes():
    """A process writes the files of both to the same places."""
    other = replace(ROWS, num_warps=2)
    with aot._worker() as worker:
        found = [worker(kernel, "sm_90") for kernel in (ROWS, other, ROWS)]
    assert [each.num_warps for each in found] == [ROWS.num_warps, 2, ROWS.num_warps]
    assert found[0] == found[2]
    assert found[0].binary != found[1].binary
    assert compile_kernels([other], "sm_90", None) == {other: found[1]}


@pytest.mark.slow
def test_a_process_that_is_stopped_while_it_writes_resumes(monkeypatch):
    """Ctrl-Z and `fg`, with PYTHONUNBUFFERED, in a line that is longer than a pipe holds."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    large = call_of(data_of(CASES["decode_oss"]), "sm_90").kernel
    with aot._worker() as worker:
        process = worker._process
        process.stdin.write(json.dumps(["sm_90", kernel_to_json(large)]).encode() + b"\n")
        process.stdin.flush()
        held = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
        written = array("i", [0])
        while written[0] < held and process.poll() is None:
            time.sleep(0.01)
            fcntl.ioctl(process.stdout, termios.FIONREAD, written)
        for sent in (signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(sent)
            time.sleep(0.1)
        found = compiled_from_json(json.loads(process.stdout.readline()))
        assert found == worker(large, "sm_90")


@pytest.mark.parametrize(
    ("kernel", "capability", "message"),
    [
        (replace(ROWS, types=("*fp32",)), "sm_80", "1 types are given"),
        (ROWS, "sm_1", "does not compile for sm_1"),
    ],
)
def test_a_failure_is_one_error(kernel, capability, message):
    with pytest.raises(BringupError, match=f"BU501: .*{message}"):
        compile_kernels([kernel], capability, None)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_every_architecture(capability):
    (found,) = compile_kernels([ROWS], capability, None).values()
    used = resources(found)
    assert (used.stack, found.capability) == (0, capability)
    assert used.warps == used.max_warps
