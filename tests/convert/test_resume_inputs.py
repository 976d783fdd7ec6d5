"""What a conversion takes over from an earlier one, and what stops it: a full disk, files that change, two at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from bringup.compile.bundle import bundle_key
from bringup.compile.convert import shards
from bringup.compile.convert.convert import convert
from bringup.compile.convert.convert_inputs import inputs_digest
from bringup.compile.job import open_job
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.killed import LEAST, kill, opening, shards_written

ADAPTER = """
from bringup.adapters import S, fn
from bringup.adapters.llama import adapter as llama


def times(x):
    return x * %d


def adapter(config):
    rule = fn(times, S("layers.{L}.mlp.up_proj.weight", "f m"), axes="f m", dtype="float32", f=24, m=16)
    return llama(config).with_(rules={"model.layers.{L}.mlp.up_proj.weight": rule})
"""
SHARDS = 8  # before the kill, so that a product of the first layer is on the disk
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save(folder: Path, seed: int = 0) -> Path:
    """Another seed: other values of the same names and sizes."""
    folder.mkdir(exist_ok=True)
    tensors, config = models.llama(vocab=33)
    tensors = models.random({name: array.shape for name, array in tensors.items()}, seed)
    save_file(tensors, folder / "new.safetensors", {"format": "pt"})
    (folder / "new.safetensors").replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save(tmp_path / "llama")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD", LEAST)


def journal_of(out: Path) -> Path:
    return out.parent / f".{out.name}.resume" / "journal"


def in_memory(source: Path, words: str) -> str:
    """The text that opens a job of the tensors of a file, in memory."""
    tensors = f"load_file({str(source / 'model.safetensors')!r})"
    config = f"__import__('json').load(open({str(source / 'config.json')!r}))"
    return f"open_job(checkpoint={words.format(tensors=tensors, config=config)})"


def same_bytes(first: Path, second: Path) -> bool:
    return (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def begins_anew(before: str, after: str, tmp_path: Path, change: Callable[[], object] = lambda: None) -> None:
    """A conversion of `after` takes nothing over from a killed one of `before`."""
    out, whole = tmp_path / "arrays", tmp_path / "whole"
    kill(before, out, "after the journal", SHARDS)
    change()
    total = shards_written(after, whole)
    assert total > SHARDS
    assert shards_written(after, out) == total
    assert same_bytes(out, whole)


@pytest.mark.slow
def test_other_values_begin_anew(llama: Path, tmp_path: Path) -> None:
    begins_anew(opening(llama), opening(llama), tmp_path, lambda: save(llama, seed=1))


@pytest.mark.slow
def test_another_dtype_begins_anew(llama: Path, tmp_path: Path) -> None:
    begins_anew(opening(llama), opening(llama, dtype="bfloat16"), tmp_path)


def test_another_function_body_begins_anew(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.py"
    file.write_text(ADAPTER % 2)
    job = opening(llama, adapter=str(file))
    begins_anew(job, job, tmp_path, lambda: file.write_text(ADAPTER % 3))
    source, result = (load_file(folder / "model.safetensors") for folder in (llama, tmp_path / "arrays"))
    for name in (f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(2)):
        assert (result[name] == source[name] * 3).all()


def test_the_same_adapter_goes_on(llama: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "table.py", tmp_path / "arrays"
    file.write_text(ADAPTER % 2)
    job = opening(llama, adapter=str(file))
    kill(job, out, "after the journal", SHARDS)
    total = shards_written(job, tmp_path / "whole")
    assert shards_written(job, out) == total - SHARDS
    assert same_bytes(out, tmp_path / "whole")


@pytest.mark.slow
def test_a_dict_begins_anew(llama: Path, tmp_path: Path) -> None:
    """Nothing says whether its values are those of an earlier process."""
    job = in_memory(llama, "dict_checkpoint({tensors}, {config})")
    begins_anew(job, job, tmp_path, lambda: save(llama, seed=1))


@pytest.mark.slow
def test_another_seed_begins_anew(llama: Path, tmp_path: Path) -> None:
    words = "dummy_checkpoint(dict_checkpoint({tensors}, {config}).headers, {config}, seed=%d)"
    begins_anew(in_memory(llama, words.replace("%d", "1")), in_memory(llama, words.replace("%d", "2")), tmp_path)


@pytest.mark.parametrize("name", ["tools", "digests", "plan_hash"])
def test_what_the_digest_has(name: str, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of the tools, source files and the plan; where sources are unknown, so is the digest."""
    job = open_job(checkpoint=llama)
    digest = inputs_digest(job, [job.plan], None, [])
    assert len(digest) == 64
    assert digest == inputs_digest(open_job(checkpoint=llama), [job.plan], None, [])
    others = {"tools": "numpy 0", "plan_hash": "x", "digests": {"engine": "another"}}
    monkeypatch.setattr(bundle_key, name, lambda *_: others[name])
    assert inputs_digest(job, [job.plan], None, []) != digest
    assert digest != inputs_digest(job, [job.plan], select("cpu"), [])
    monkeypatch.setattr(bundle_key, "digests", lambda *_: None)
    assert inputs_digest(job, [job.plan], None, []) == ""


def test_unknown_inputs_leave_no_staging(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no later run can take over is removed after an error."""
    monkeypatch.setattr(bundle_key, "digests", lambda *_: None)
    error = full_after(monkeypatch, 20)
    with pytest.raises(BringupError, match="BU902") as caught:
        convert(open_job(checkpoint=llama), tmp_path / "arrays")
    assert error
    assert ".arrays.resume" not in caught.value.findings[0].help
    assert not journal_of(tmp_path / "arrays").parent.exists()


def full_after(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """The disk is full from parameter `count` on; shards are small."""
    monkeypatch.setattr(shards, "SHARD", LEAST)
    fill, done = shards.fill, list[str]()

    def stop(entry: Any, read: Any) -> Any:
        done.append(entry.declared)
        if len(done) > count:
            raise FULL
        return fill(entry, read)

    monkeypatch.setattr(shards, "fill", stop)
    return done


def test_a_full_disk_names_what_stays(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "arrays"
    with pytest.MonkeyPatch.context() as patch:
        full_after(patch, 20)
        refused = bringup("convert", "--checkpoint", llama, "-o", out)
    assert (refused.exit_code, "error[BU902]" in refused.stderr) == (3, True)
    assert journal_of(out).exists()
    assert f"`{journal_of(out).parent}` has what was written" in " ".join(refused.stderr.split())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD", LEAST)
        again = bringup("convert", "--checkpoint", llama, "-o", out)
    assert (again.exit_code, "shards taken over" in again.stderr) == (0, True)


def test_no_fdatasync(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS lacks it."""
    monkeypatch.delattr(os, "fdatasync", raising=False)
    assert convert(open_job(checkpoint=llama), tmp_path / "arrays").files == ("model.safetensors",)


def rewritten(file: Path) -> None:
    """Other bytes in place, with the time of the old ones."""
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(stat.st_size - 4)
        opened.write(b"\0\0\0\0")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("form", ["safetensors", "npz"])
@pytest.mark.parametrize(
    ("change", "at", "said"),
    [
        (lambda file: save(file.parent, seed=1), 34, "was written to or replaced"),
        (rewritten, 34, "was written to or replaced"),
        (lambda file: file.rename(file.with_suffix(".old")), 35, "was removed"),
    ],
    ids=["replaced", "rewritten", "removed"],
)
@pytest.mark.usefixtures("small")
def test_a_file_that_changes_meanwhile(
    form: str, change: Any, at: int, said: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After parameter `at` of 35: the result is no mixture of two checkpoints, and no later run takes it over."""
    file, compute, count = llama / "model.safetensors", shards.fill, [0]

    def fill(*given: Any) -> Any:
        result = compute(*given)
        count[0] += 1
        if count[0] == at:
            change(file)
        return result

    monkeypatch.setattr(shards, "fill", fill)
    monkeypatch.setattr(shards, "THREADS", 1)
    with pytest.raises(BringupError) as caught:
        convert(open_job(checkpoint=llama), tmp_path / "arrays", form=form)
    finding = caught.value.findings[0]
    assert (finding.code, finding.message) == ("BU207", f"`{file}` {said} while its tensors were read")
    assert [path.name for path in tmp_path.iterdir() if "arrays" in path.name] == []


PAUSED = """
import sys, time
from pathlib import Path
from bringup.cli.main import cli
from bringup.compile.convert import staging
add, here = staging.Staging.add, Path(sys.argv.pop(1))
def pause(self, key, digest):
    add(self, key, digest)
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
staging.Staging.add = pause
cli.main(sys.argv[1:])
"""


def test_two_at_once(llama: Path, tmp_path: Path) -> None:
    """The second waits until the first is done, and finds its folder."""
    out, other = tmp_path / "arrays", save(tmp_path / "other", seed=1)
    first_words, second_words = (["convert", "--checkpoint", str(source), "-o", str(out)] for source in (llama, other))
    with subprocess.Popen([sys.executable, "-c", PAUSED, str(tmp_path), *first_words]) as first:
        try:
            while not (tmp_path / "begun").exists():
                assert first.poll() is None
                time.sleep(0.05)
            words = [sys.executable, "-m", "bringup", *second_words]
            with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as second:
                assert second.stderr
                said = next(line for line in second.stderr if "BU013" in line)
                assert journal_of(out).exists()
                (tmp_path / "go").touch()
                rest = second.stderr.read()
        finally:
            (tmp_path / "go").touch()
    assert f"process {first.pid} on" in said
    assert (first.returncode, second.returncode, "error[BU011]" in rest) == (0, 2, True), rest
    source, result = (load_file(folder / "model.safetensors") for folder in (llama, out))
    assert all((result[name] == source[name]).all() for name in source)
    assert not journal_of(out).parent.exists()
