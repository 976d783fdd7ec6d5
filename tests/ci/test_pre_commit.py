"""The hooks, run by pre-commit itself on a repository of its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.conftest import ROOT, run

HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ci" / "pre-commit-config.yaml").read_text("utf-8"))


@pytest.fixture
def repository(tmp_path: Path, good: Path) -> Path:
    """With a checkpoint's folder, and the hooks in the environment that runs this test instead of one of their own."""
    folder = tmp_path / "repository"
    shutil.copytree(good, folder / "llama")
    args = {"bringup-check": ["--checkpoint", "llama"], "bringup-lock": []}
    hooks = [{**hook, "language": "system", "args": args[hook["id"]]} for hook in HOOKS]
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": hooks}]}))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    return folder


def environment(folder: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "PYTEST"))}
    paths = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
    return own | {"PRE_COMMIT_HOME": str(folder.parent / "cache"), "PATH": paths, "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder: Path, *words: str) -> None:
    done = run(["git", *words], cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stdout


def hook(folder: Path, name: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "pre_commit", "run", name, "--all-files", "--color", "never"]
    done = run(words, cwd=folder, env=environment(folder))
    return done.returncode, done.stdout


def test_a_checkpoint_that_fits_and_one_that_does_not(repository: Path, bad: Path) -> None:
    code, printed = hook(repository, "bringup-check")
    assert (code, "Passed" in printed) == (0, True), printed
    shutil.copy(bad / "model.safetensors", repository / "llama")
    git(repository, "add", "--all")
    code, printed = hook(repository, "bringup-check")
    assert (code, "BU101" in printed) == (1, True), printed


def test_a_lock_that_has_drifted(repository: Path) -> None:
    """One of two; other programs' lock files are not bringup's."""
    (repository / "poetry.lock").write_text("[[package]]\n")
    (repository / "uv.lock").write_text("version = 1\n")
    git(repository, "add", "--all")
    code, printed = hook(repository, "bringup-lock")
    assert (code, "no files to check" in printed) == (0, True), printed
    for name in ("plan.lock", "llama.plan.lock"):
        words = [sys.executable, "-m", "bringup", "lock", "--checkpoint", "llama", "-o", name]
        assert run(words, cwd=repository, env=environment(repository)).returncode == 0
    git(repository, "add", "--all")
    code, printed = hook(repository, "bringup-lock")
    assert (code, "Passed" in printed) == (0, True), printed
    lock = repository / "plan.lock"
    lock.write_text(lock.read_text().replace("input_layernorm", "input_norm"))
    code, printed = hook(repository, "bringup-lock")
    assert (code, "BU141" in printed) == (1, True), printed


@pytest.fixture
def published(checkout: Path, tmp_path: Path) -> Path:
    """The repository of the hooks, as pre-commit clones it."""
    folder = tmp_path / "published"
    shutil.copytree(checkout, folder, symlinks=True)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    return folder


@pytest.mark.slow  # it builds the package, and a virtual environment
def test_pre_commit_installs_the_hooks(repository: Path, published: Path, linked: Path) -> None:
    """`try-repo` clones the repository and installs the package by itself; without an index, for this test."""
    words = [sys.executable, "-m", "bringup", "lock", "--checkpoint", "llama", "-o", "plan.lock"]
    assert run(words, cwd=repository, env=environment(repository)).returncode == 0
    git(repository, "add", "--all")
    own = environment(repository) | {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PYTHONPATH": str(linked)}
    words = [sys.executable, "-m", "pre_commit", "try-repo", str(published), "bringup-lock", "--all-files"]
    done = run([*words, "--color", "never"], cwd=repository, env=own)
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout
    lock = repository / "plan.lock"
    lock.write_text(lock.read_text().replace("input_layernorm", "input_norm"))
    done = run([*words, "--color", "never"], cwd=repository, env=own)
    assert (done.returncode, "BU141" in done.stdout) == (1, True), done.stdout


def test_the_example_names_hooks_that_there_are() -> None:
    named = [hook["id"] for each in EXAMPLE["repos"] for hook in each["hooks"]]
    assert named == [hook["id"] for hook in HOOKS]
