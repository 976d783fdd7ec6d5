"""A conversion that is killed goes on with the shard that it was at; nothing of it is a result before its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply.parallel import Parallel
from bringup.compile.convert import shards
from bringup.compile.convert.array_files import array_file
from bringup.compile.convert.convert import convert
from bringup.compile.convert.staging import Staging
from bringup.compile.job import open_job
from bringup.spec import TensorInfo
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.killed import LEAST, kill, opening

ONCE = """
import os, signal, sys
from bringup.cli.main import cli
from bringup.compile.convert import shards

fill, count = shards.fill, 0

def killed(*given):
    global count
    count += 1
    if count == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return fill(*given)

shards.fill = killed
cli.main(sys.argv[1:])
"""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    tensors, config = models.llama(vocab=33)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD", LEAST)


def journal(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out.parent / f".{out.name}.resume" / "journal").read_text().splitlines()]


def written(monkeypatch: pytest.MonkeyPatch, source: Path, out: Path, tp: int = 1, form: str = "safetensors") -> int:
    """How many shards a conversion writes."""
    count, add = [], Staging.add
    monkeypatch.setattr(Staging, "add", lambda self, key, digest: (count.append(key), add(self, key, digest))[1])
    convert(open_job(checkpoint=source), out, parallel=Parallel(tp=tp), form=form)
    assert not list(out.parent.glob(f".{out.name}.resume")), "the staging is gone"
    return len(count)


@pytest.mark.parametrize(
    ("point", "there"), [("before the journal", 3), ("after the journal", 3), ("before the move", -1)]
)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.usefixtures("small")
def test_a_kill(point: str, there: int, tp: int, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole", tmp_path / "arrays"
    with monkeypatch.context() as patch:
        total = written(patch, llama, whole, tp)
    assert total > 5
    kill(opening(llama), out, point, tp=tp)
    assert len(journal(out)) == 1 + (there if there >= 0 else total)
    with monkeypatch.context() as patch:
        assert written(patch, llama, out, tp) == total - (there if there >= 0 else total)
    for file in whole.glob("*.safetensors"):
        assert file.read_bytes() == (out / file.name).read_bytes()


@pytest.mark.parametrize(("point", "there"), [("before the journal", 3), ("before the move", -1)])
@pytest.mark.usefixtures("small")
def test_a_kill_of_archives(
    point: str, there: int, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finished .npz file has the bytes of one that was never stopped; numpy and zipfile read it."""
    whole, out = tmp_path / "whole", tmp_path / "arrays"
    with monkeypatch.context() as patch:
        total = written(patch, llama, whole, form="npz")
    kill(opening(llama), out, point, form="npz")
    with monkeypatch.context() as patch:
        assert written(patch, llama, out, form="npz") == total - (there if there >= 0 else total)
    assert (whole / "model.npz").read_bytes() == (out / "model.npz").read_bytes()
    with zipfile.ZipFile(out / "model.npz") as archive:
        assert archive.testzip() is None
    with np.load(out / "model.npz") as found:
        arrays = convert_to_safetensors(llama, tmp_path / "safe")
        assert set(found.files) == arrays.keys()
        assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_what_is_taken_over_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that compares an array with the journal computes the checksum of its member too."""
    values = {"a": np.arange(100_000, dtype=np.float32), "empty": np.zeros((0, 3), np.float32)}
    infos = [TensorInfo(name, "float32", array.shape) for name, array in values.items()]
    path = tmp_path / "model.npz"
    with array_file(path, infos, "npz") as file:
        for name, array in values.items():
            file.put(name, array)
    whole, read = path.read_bytes(), list[int]()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *words: (read.append(words[1]), pread(*words))[1])
    with array_file(path, infos, "npz", again=True) as file:
        for name, array in values.items():
            assert b"".join(file.stored(name)) == array.tobytes()
            file.skip(name)
    assert sum(read) == sum(array.nbytes for array in values.values())
    assert path.read_bytes() == whole


def convert_to_safetensors(source: Path, out: Path) -> dict[str, Any]:
    convert(open_job(checkpoint=source), out)
    return load_file(out / "model.safetensors")


@pytest.mark.usefixtures("small")
def test_a_kill_after_the_move(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not in its place yet, and its staging is gone: all is done again, and nothing is left behind."""
    out = tmp_path / "arrays"
    kill(opening(llama), out, "after the move")
    with monkeypatch.context() as patch:
        assert written(patch, llama, out) > 5
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".arrays")] in ([], [".arrays.lock"])


@pytest.mark.usefixtures("small")
def test_bytes_that_are_not_what_the_journal_says(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lost what it said it had, or somebody who wrote to it: the shard is written again."""
    whole, out = tmp_path / "whole", tmp_path / "arrays"
    with monkeypatch.context() as patch:
        total = written(patch, llama, whole)
    kill(opening(llama), out, "after the journal", before=4)
    file = tmp_path / ".arrays.resume" / "model.safetensors"
    at = file.stat().st_size - 100  # of the last parameter in the file
    with file.open("r+b") as opened:
        first = 8 + int.from_bytes(opened.read(8), "little")
        opened.seek(first + 16)
        opened.write(b"\xff" * 64)
    assert at > first
    with monkeypatch.context() as patch:
        assert written(patch, llama, out) in (total - 3, total - 4)
    assert (whole / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_layer_by_layer(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same arrays; layers are complete one after the other, whatever the order of the file."""
    order: list[str] = []
    from bringup.compile.convert import array_files

    put = array_files._Safetensors.put
    monkeypatch.setattr(
        array_files._Safetensors, "put", lambda self, name, array: (order.append(name), put(self, name, array))[1]
    )
    convert(open_job(checkpoint=llama), tmp_path / "layered", layered=True)
    layers = [int(name.split(".")[2]) for name in order if ".layers." in name]
    assert layers == sorted(layers)
    convert(open_job(checkpoint=llama), tmp_path / "whole")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("layered", "whole"))
    assert all((first[name] == second[name]).all() for name in second)


def test_bytes_in_flight_are_bounded(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of results that are computed and not written yet."""
    monkeypatch.setattr(shards, "IN_FLIGHT", 1)  # so that there is one group at a time
    flying, most = [0], [0]
    compute, taken = shards.Writer._compute, shards.Writer._taken

    def begin(self: Any, group: Any) -> Any:
        flying[0] += 1
        most[0] = max(most[0], flying[0])
        return compute(self, group)

    def end(self: Any, *words: Any) -> Any:
        found = taken(self, *words)
        flying[0] -= 1
        return found

    monkeypatch.setattr(shards.Writer, "_compute", begin)
    monkeypatch.setattr(shards.Writer, "_taken", end)
    convert(open_job(checkpoint=llama), tmp_path / "arrays")
    assert most == [1]


def test_a_kill_leaves_what_was_there(bringup: Bringup, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert bringup("convert", "--checkpoint", llama, "-o", out).exit_code == 0
    before = (out / "model.safetensors").read_bytes()
    words = ["convert", "--checkpoint", llama, "--tp", "2", "-o", out, "--force"]
    done = subprocess.run([sys.executable, "-c", ONCE, *map(str, words)], check=False, capture_output=True)
    assert done.returncode == -9
    assert (out / "model.safetensors").read_bytes() == before
    assert bringup(*words).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "out"]
    assert sorted(path.name for path in out.glob("*.safetensors")) == ["rank0.safetensors", "rank1.safetensors"]
