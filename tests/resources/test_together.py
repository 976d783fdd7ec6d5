"""Several compiles at once: to one place, to several, over one cache; and loads while a bundle is exchanged."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import bringup
from bringup.compile.bundle.folder import writing
from bringup.diagnostics import BringupError, Diagnostic
from bringup.progress import Silent
from bringup.system.lock import locked, sibling_path
from tests.resources.compiles import names, tokens_of


class WarningCodes(Silent):
    """A progress that keeps the codes of what it is told."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def warn(self, finding: Diagnostic) -> None:
        self.codes.append(finding.code)


def words(checkpoint: Path, out: Path, *more: str) -> list[str | Path]:
    return ["compile", "--checkpoint", checkpoint, "--target", "torch", "-o", out, *more]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_place_is_written_by_one_at_a_time(nursery, checkpoints, tmp_path, count):
    """One wins; the others wait, see its bundle, and are told so, or find it is what they would have made."""
    out = tmp_path / "o" / "b"
    running = [nursery.start(*words(checkpoints[i % 2], out)) for i in range(count)]
    ended = [one.wait() for one in running]
    codes = sorted(one.code for one in ended)
    assert codes[0] == 0, ended
    assert set(codes) <= {0, 2}
    for one in ended:
        assert one.code == 0 or one.said.count("error[BU011]") == 1
    assert names(out.parent) == ["b"]
    assert tokens_of(out)


@pytest.mark.slow
def test_with_force_the_last_stays(nursery, checkpoints, tmp_path):
    out = tmp_path / "o" / "b"
    running = [nursery.start(*words(checkpoints[i % 2], out, "--force")) for i in range(4)]
    assert [one.wait().code for one in running] == [0] * 4
    assert names(out.parent) == ["b"]
    assert tokens_of(out)


@pytest.mark.slow
def test_different_places_and_one_cache(nursery, checkpoints, tmp_path):
    shared = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    outs = [tmp_path / "o" / f"b{i}" for i in range(4)]
    running = [nursery.start(*words(checkpoints[i % 2], out), environment=shared) for i, out in enumerate(outs)]
    ended = [one.wait() for one in running]
    assert [one.code for one in ended] == [0] * 4, ended
    assert not any("BU013" in one.said for one in ended)
    said = [tokens_of(out) for out in outs]
    assert said[0] == said[2] != said[1] == said[3]
    assert names(tmp_path / "o") == [out.name for out in outs]


def test_who_waits_says_for_whom(nursery, checkpoints, tmp_path):
    out = tmp_path / "o" / "b"
    out.parent.mkdir()
    with locked(out, Silent()):
        waiting = nursery.start(*words(checkpoints[0], out))
        said, holder = "", sibling_path(out, "lock").read_text()
        while "writes to the same place" not in said:
            time.sleep(0.05)
            said = " ".join(waiting.errors.read_text().split()) if waiting.errors.exists() else ""
        assert "BU013" in said
        assert f"waiting for the lock of `{out}`: {holder} writes to the same place" in said
        assert not out.exists()
    assert waiting.wait().code == 0
    assert names(out.parent) == ["b"]


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_has_is_not(tmp_path):
    part, lock = sibling_path(tmp_path / "b", "part"), sibling_path(tmp_path / "b", "lock")
    part.mkdir()
    (part / "weights.safetensors").write_text("half")
    lock.write_text("process 1 on nowhere")  # nobody holds it, whatever it says
    done, progress = threading.Event(), WarningCodes()

    def second() -> None:
        with writing(tmp_path / "b", progress=progress) as folder:
            (folder / "manifest.json").write_text("second")
        done.set()

    thread = threading.Thread(target=second)
    with writing(tmp_path / "b") as folder:
        assert list(folder.iterdir()) == []
        (folder / "manifest.json").write_text("first")
        thread.start()
        while thread.is_alive() and not progress.codes:
            time.sleep(0.01)
        assert not done.is_set()
        assert progress.codes == ["BU013"]
        assert (folder / "manifest.json").read_text() == "first"
    thread.join()
    assert (tmp_path / "b" / "manifest.json").read_text() == "second"
    assert names(tmp_path) == ["b"]


def test_the_names_next_to_a_path_have_its_bytes():
    """Names that are not UTF-8 differ from each other, and long ones stay below the limit of file systems."""
    paths = [Path(os.fsdecode(b"o/b\xff")), Path(os.fsdecode(b"o/b\xfe"))]
    assert [os.fsencode(sibling_path(path, "lock")) for path in paths] == [b"o/.b\xff.lock", b"o/.b\xfe.lock"]
    assert len(os.fsencode(sibling_path(Path("o") / ("é" * 127), "part").name)) == 1 + 200 + len(".part")


def test_a_path_beyond_ascii_in_an_ascii_locale(tmp_path):
    """The names are those of the file system's encoding, which is ASCII in the C locale without UTF-8 mode."""
    code = (
        "import os, sys; from pathlib import Path; from bringup.system.lock import sibling_path\n"
        "sibling_path(Path(sys.argv[1]), 'lock').touch()"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "bündel"], env=environment, check=True)
    assert names(tmp_path) == [".bündel.lock"]


def test_a_file_system_without_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr("bringup.compile.bundle.folder.exchange", lambda *_: False)
    for text in ("first", "second"):
        with writing(tmp_path / "b") as folder:
            (folder / "manifest.json").write_text(text)
    assert names(tmp_path) == ["b"]
    (tmp_path / "b").rename(sibling_path(tmp_path / "b", "old"))  # killed between the two renames
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "b"):
        raise ZeroDivisionError
    assert names(tmp_path) == ["b"]
    assert (tmp_path / "b" / "manifest.json").read_text() == "second"


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(BringupError, match="BU013"), writing(tmp_path / "b"):
        pytest.fail("it was locked")


@pytest.mark.slow
def test_a_load_never_mixes_two_compiles(nursery, checkpoints, tmp_path, monkeypatch):
    """Another bundle is put there after the manifest was read, and after the weights were: all is read again."""
    out, other = tmp_path / "b", tmp_path / "other"
    for place, checkpoint in ((out, checkpoints[0]), (other, checkpoints[1])):
        assert nursery.run(*words(checkpoint, place)).code == 0
    expected = bringup.load(other).prefill([1, 2, 3])
    assert not np.array_equal(bringup.load(out).prefill([1, 2, 3]), expected)
    import bringup.compile.runtime.opening as opening

    for late in ("_weights", "read_manifest"):
        assert nursery.run(*words(checkpoints[0], out, "--force")).code == 0
        real = getattr(opening, late)
        calls: list[object] = []

        def then_exchange(*given: object, real=real, calls=calls, **options: object) -> object:
            found = real(*given, **options)
            calls.append(given)
            if len(calls) == 1:
                assert nursery.run(*words(checkpoints[1], out, "--force")).code == 0
            return found

        monkeypatch.setattr(opening, late, then_exchange)
        assert np.array_equal(bringup.load(out).prefill([1, 2, 3]), expected)
        monkeypatch.undo()
        assert len(calls) == 2
