"""A second compile finds everything; weights are shared with the bundle that has them, and with nothing else."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner, Result

import bringup
from bringup.cli.main import cli
from tests.cache.mini import Mini


@pytest.fixture(scope="module")
def mini(tmp_path_factory, nursery) -> Mini:
    written = Mini.write(tmp_path_factory.mktemp("mini"), nursery)
    written.compile("-o", "a.bundle")
    return written


def logits(mini: Mini, bundle: str):
    return bringup.load(mini.folder / bundle).prefill([3, 1, 4]).tolist()


def test_the_same_compile_again_does_nothing_and_says_so(mini):
    before = {path: path.stat().st_mtime_ns for path in (mini.folder / "a.bundle").rglob("*")}
    output = mini.compile("-o", "a.bundle")
    assert "up to date" in output
    assert {path: path.stat().st_mtime_ns for path in (mini.folder / "a.bundle").rglob("*")} == before


@pytest.mark.parametrize("name", ["weights.safetensors", "kernels.o", "schedule.json"])
def test_a_damaged_bundle_is_not_up_to_date(mini, name):
    """As an interrupted copy of a bundle leaves it."""
    copy = mini.folder / "copy.bundle"
    shutil.copytree(mini.folder / "a.bundle", copy)
    assert "up to date" in mini.compile("-o", "copy.bundle")
    file = copy / name
    content = file.read_bytes()[:-1]
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(AssertionError, match="BU011"):
        mini.compile("-o", "copy.bundle")
    mini.compile("-o", "copy.bundle", "--force", cache="another")
    assert logits(mini, "copy.bundle") == logits(mini, "a.bundle")
    shutil.rmtree(copy)


def test_another_place_takes_everything_from_the_cache(mini):
    output = mini.compile("-o", "b.bundle")
    assert "all from the cache" in output
    assert "kernels, from the cache" in output
    assert output.count("from the cache") == 2
    assert "shared with the bundle" in output
    assert logits(mini, "b.bundle") == logits(mini, "a.bundle")
    manifests = [json.loads((mini.folder / name / "manifest.json").read_text()) for name in ("a.bundle", "b.bundle")]
    assert manifests[0]["files"] == manifests[1]["files"]


def test_another_target_is_another_bundle(mini):
    output = mini.compile("-o", "a.bundle", "--target", "torch", "--force")
    assert "from the cache" not in output
    assert "shared with the bundle" in output
    assert not (mini.folder / "a.bundle" / "kernels.o").exists()


def test_weights_that_were_touched_are_not_shared(mini):
    mini.compile("-o", "c.bundle", "--force")
    mini.compile("-o", "d.bundle", "--force")
    whole = (mini.folder / "c.bundle" / "weights.safetensors").read_bytes()
    for name in ("a.bundle", "b.bundle", "c.bundle", "d.bundle"):
        path = mini.folder / name / "weights.safetensors"
        if path.exists():
            path.chmod(0o644)
            path.write_bytes(bytes(len(whole)))
    output = mini.compile("-o", "e.bundle")
    assert "shared" not in output
    assert (mini.folder / "e.bundle" / "weights.safetensors").read_bytes() == whole


def test_an_edit_of_a_forward_keeps_the_weights_and_changes_the_numbers(mini):
    words = ("-o", "f.bundle", "--target", "torch", "--force")
    mini.compile(*words)
    before = logits(mini, "f.bundle")
    mini.edit("mini.py", "return x + helpers.twice(y)", "return x - helpers.twice(y)")
    output = mini.compile(*words)
    mini.edit("mini.py", "return x - helpers.twice(y)", "return x + helpers.twice(y)")
    assert "shared with the bundle" in output
    assert "4 of them from the cache" in output
    assert logits(mini, "f.bundle") != before


def test_cache_commands(mini, monkeypatch):
    monkeypatch.setenv("BRINGUP_COMPILE_CACHE", str(mini.folder / "cache"))

    def cache(*words: str) -> Result:
        return CliRunner().invoke(cli, ["cache", *words])

    mini.mlir("before.mlir")
    mini.edit("mini.py", "+ OFFSET,)  # prologue", "+ 2 * OFFSET,)  # prologue")
    mini.mlir("after.mlir")
    mini.edit("mini.py", "+ 2 * OFFSET,)  # prologue", "+ OFFSET,)  # prologue")
    listed = cache("ls")
    assert "decode.layer0 of Mini" in listed.stdout
    why = cache("why", "decode.prologue of Mini, iree-cpu").stdout
    assert "not reused: unlike" in why
    assert [line.split()[:2] for line in why.splitlines()[2:]] == [["source", f"{mini.folder.name}/mini.py"]]
    key = listed.stdout.split()[0]
    assert "removed 1 entry" in cache("rm", key).stderr
    wrong = cache("rm", key)
    assert (wrong.exit_code, "BU041" in wrong.stderr) == (2, True)
    assert "entries" in cache("rm", "--all").stderr
    assert cache("ls").stdout == ""
