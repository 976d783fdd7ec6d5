"""A registered name wins over a file or folder of that name; a path is written as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bringup as package
from bringup.cli.bundles import bundle_name
from bringup.compile.bundle.folder import bundle_of
from bringup.compile.job import Job
from bringup.compile.verify import command as verification
from tests.cli.conftest import Bringup


@pytest.fixture
def named_folders(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which checkpoints lie that are called like a preset, a family, and like nothing."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("gpt2", "llama", "mine"):
        shutil.copytree(small, here / name)
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(
    "line",
    [
        "check gpt2 --checkpoint dummy",
        "check gpt2 --checkpoint gpt2 --config gpt2/config.json",
        "check gpt2 --checkpoint ./gpt2",
        "compile gpt2 --checkpoint dummy --dry-run",
        "compile gpt2 --checkpoint gpt2 --emit graph",
        "explain transformer.wte.weight gpt2 --checkpoint gpt2",
    ],
)
def test_a_folder_of_a_models_name_is_in_nobodys_way(bringup: Bringup, named_folders: Path, line: str) -> None:
    result = bringup(*line.split())
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["check", "compile", "explain wte"])
def test_the_preset_itself_is_looked_for(
    bringup: Bringup, named_folders: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Without a checkpoint: the published one, not the folder here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(named_folders / "cache"))
    monkeypatch.setenv("CI", "1")  # else dummy weights
    result = bringup(*command.split(), "gpt2")
    assert "BU911" in result.output
    assert "openai-community/gpt2" in result.output


def test_a_family_has_no_published_checkpoint(bringup: Bringup, named_folders: Path) -> None:
    result = bringup("check", "llama")
    assert (result.exit_code, "BU005" in result.output) == (2, True)


@pytest.mark.parametrize("word", ["./gpt2", "./llama", "mine", "gpt2/", "hf://org/name", "x.safetensors"])
def test_a_path_is_a_checkpoint(bringup: Bringup, named_folders: Path, word: str) -> None:
    result = bringup("check", word)
    assert result.exit_code == 2
    assert f"`{word}` is a checkpoint, not a model" in result.output
    assert f"write --checkpoint {word}" in result.output


def test_a_link_of_a_models_name_does_not_name_the_bundle(named_folders: Path) -> None:
    (named_folders / "gpt2-xl").symlink_to("mine")
    assert bundle_name("gpt2-xl", None) == "gpt2-xl"


def test_a_bundle_of_a_models_name(
    bringup: Bringup, named_folders: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree("gpt2")
    config = json.loads((small / "config.json").read_text("utf-8"))
    built = package.build(package.open_job(None, "dummy", config=config), out="gpt2", target="torch", buckets=(16,))
    shutil.copytree(built, "mine.bundle")
    assert [bundle_of(word) for word in ("gpt2", "./gpt2", "mine.bundle", "mine", "nothing")] == [
        None, Path("gpt2"), Path("mine.bundle"), None, None,
    ]  # fmt: skip
    assert bundle_of(Path("gpt2")) == Path("gpt2")
    opened: list[str | None] = []

    def verify(job: Job, *args: object, **settings: object) -> None:
        opened.append(job.model)
        raise ZeroDivisionError

    monkeypatch.setattr(verification, "verify", verify)
    assert "write ./gpt2" in bringup("verify", "gpt2", "--target", "torch", "--checkpoint", "dummy").stderr
    refused = bringup("verify", "./gpt2", "--target", "torch").output
    assert "is a bundle: it has its own model, config, adapter, target" in refused
    assert "leave out --target" in refused
    assert opened == ["gpt2"]


def test_a_path_that_is_no_model(bringup: Bringup, named_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bringup("check", "mine", "--checkpoint", "mine", "--format", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert (result.exit_code, finding["code"]) == (2, "BU002")
    assert finding["help"] == "`mine` is a path: if it is a checkpoint, write --checkpoint mine"


@pytest.mark.parametrize(
    "line",
    [
        "run absent.bundle --tokens 1",
        "serve absent.bundle",
        "kernels test absent.bundle",
        "bench absent.bundle",
        "verify ./absent",
        "export absent.bundle -o out",
        "explain wte.weight absent.bundle",
    ],
)
def test_an_absent_bundle_is_an_absent_path(bringup: Bringup, tmp_path: Path, monkeypatch, line: str) -> None:
    """In each command that accepts a bundle, with the same code and exit code."""
    monkeypatch.chdir(tmp_path)
    result = bringup(*line.split())
    name = "./absent" if "./" in line else "absent.bundle"
    assert (result.exit_code, f"error[BU034]: no such file or folder: `{name}`" in result.output) == (2, True)
    assert "`bringup compile` writes a bundle" in result.output
