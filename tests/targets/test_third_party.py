"""A target of an installed package is compiled for, run, verified and cached as bringup's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.headers import gpt2_config
from tests.targets.third_party import bringup, here, install, manifest

SMALL = {"layers": 1, "hidden": 128, "vocab": 21, "positions": 32}
COMPILE = ("compile", "gpt2", "--checkpoint", "dummy", "--config", "config.json", "--target")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the package in `site`, a cache, and bundles of both targets."""
    folder = tmp_path_factory.mktemp("built")
    site = install(folder / "site")
    (folder / "config.json").write_text(json.dumps(gpt2_config(**SMALL)))
    for run, words in (  # the first in a process, as every compile that has to find what it left
        (bringup, ("scale", "-o", "s.bundle", "--target-option", "factor=3")),
        (here, ("torch", "-o", "t.bundle")),
    ):
        done = run(folder, site, *COMPILE, *words)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may edit."""
    return shutil.copytree(built, tmp_path / "copy")


def test_it_is_compiled_and_run(built):
    found = manifest(built / "s.bundle")
    assert (found["target"], found["target_package"], found["target_options"]) == (
        "scale", "scale-target", {"factor": "3"}
    )  # fmt: skip
    assert found["tools"]["scale-target"] == "1.5"
    words = ("--tokens", "1,2,3", "--max-new-tokens", "4", "--json")
    tokens = [json.loads(here(built, built / "site", "run", name, *words).stdout) for name in ("s.bundle", "t.bundle")]
    assert tokens[0]["tokens"] == tokens[1]["tokens"]
    done = here(built, built / "site", "run", "s.bundle", *words, "--executor", "left")
    assert done.returncode == 0, done.stderr
    done = here(built, built / "site", "run", "s.bundle", *words, "--executor", "lfet")
    assert "error[BU018]: a scale bundle has no executor `lfet`" in done.stderr
    assert "did you mean `left`?" in done.stderr


VERIFY = ("verify", "gpt2", "--checkpoint", "dummy", "--config", "config.json", "--target", "scale")
VERIFY += ("--prompt-length", "5", "--json", "--target-option")


@pytest.mark.parametrize(("factor", "code"), [(1, 0), (3, 1)])
def test_it_is_verified(built, factor, code):
    done = here(built, built / "site", *VERIFY, f"factor={factor}")
    assert done.returncode == code, done.stdout + done.stderr
    assert json.loads(done.stdout)["target"] == "scale"


@pytest.mark.slow
def test_a_departure_is_bisected(built):
    """Parts of the program are compiled for the target too: its factor shows in the first one."""
    done = here(built, built / "site", *VERIFY, "factor=3", "--bisect")
    (finding,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["code"]) == (1, "BU704"), done.stderr
    assert "when compiled for `scale`" in finding["message"]


@pytest.mark.slow
def test_its_phases(built, tmp_path):
    done = here(built, built / "site", *COMPILE, "scale", "--emit", "factors", "-o", tmp_path / "x")
    assert (done.returncode, (tmp_path / "x").read_text()) == (0, "1"), done.stderr
    words = ("--dump-dir", tmp_path / "dump", "-o", tmp_path / "b", "--target-option", "factor=2")
    done = here(built, built / "site", *COMPILE, "scale", *words)
    assert (tmp_path / "dump" / "2-factor.txt").read_text() == "2", done.stderr
    assert (tmp_path / "dump" / "1-program.decode.layer0.txt").is_file()
    done = here(built, built / "site", *COMPILE, "scale", "--emit", "mlir", "-o", tmp_path / "y")
    assert "error[BU008]: target `scale` has no phase `mlir`" in done.stderr
    assert "`--target iree-cpu` has it" in done.stderr
    done = here(built, built / "site", *COMPILE, "torch", "--emit", "factors", "-o", tmp_path / "y")
    assert "`--target scale` has it" in done.stderr


def test_a_bundle_whose_target_is_gone(built):
    for words in (("run", "s.bundle", "--tokens", "1"), ("verify", "s.bundle")):
        done = here(built, None, *words)
        assert done.returncode == 3, done.stderr
        assert "target `scale` of the package `scale-target`, which is not installed" in done.stderr + done.stdout
        assert "error[BU923]" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_a_target_of_another_package_does_not_replace_it(folder):
    """The name alone does not identify a target."""
    shutil.rmtree(folder / "site")
    install(folder / "site", name="other-target")
    assert "error[BU923]" in bringup(folder, folder / "site", "run", "s.bundle", "--tokens", "1").stderr


def lines(folder: Path, *more: str) -> str:
    """What compiling once more with the same options reports."""
    done = bringup(folder, folder / "site", *COMPILE, "scale", "-o", "s.bundle", "--target-option", "factor=3", *more)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_nothing_is_computed_twice(folder):
    assert "up to date" in lines(folder)
    again = lines(folder, "--force")
    assert "all from the cache" in again
    assert "factor from the cache" in again


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["its source file", "a file that it imports", "its distribution's version"])
def test_an_edit_is_in_every_key(folder, what):
    """Stages, the module and the bundle are computed again after an edit that may change any of them."""
    site = folder / "site"
    if what == "its source file":
        edit(site / "scale_target.py", "FACTOR = 1.0", "FACTOR = 2.0")
    elif what == "a file that it imports":
        (site / "factors.py").write_text("FACTOR = 1.0\n")
        edit(site / "scale_target.py", "FACTOR = 1.0", "from factors import FACTOR")
        lines(folder, "--force")
        edit(site / "factors.py", "1.0", "2.0")
    else:
        edit(site / "scale_target-1.5.dist-info" / "METADATA", "1.5", "1.6")
    again = lines(folder, "--force")
    assert "up to date" not in again
    assert "from the cache" not in again
    assert "up to date" in lines(folder)


def test_an_option_is_in_the_key_of_modules_and_bundles_alone(folder):
    again = lines(folder, "--force", "--target-option", "factor=4")
    assert "all from the cache" in again
    assert "factor from the cache" not in again
    assert manifest(folder / "s.bundle")["target_options"] == {"factor": "4"}


def test_what_it_requires(folder):
    edit(folder / "site" / "scale_target.py", 'requires = ("torch",)', 'requires = ("torch", "no-such-package")')
    done = bringup(folder, folder / "site", *COMPILE, "scale", "-o", "x")
    assert "error[BU922]: target `scale` requires `no-such-package`, which is not installed" in done.stderr
    assert "run: pip install no-such-package" in done.stderr
    assert "Exported" not in done.stderr
