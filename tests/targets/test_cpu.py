"""The name `cpu`: which target it is here, on Windows, and in manifests of the first bundles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.targets import requirements
from bringup.compile.targets.iree_cpu import IREE_CPU
from bringup.compile.targets.llvm import LLVM
from bringup.compile.targets.registry import aliases, find, of_bundle
from bringup.diagnostics import BringupError
from tests.schedule.models import CONTEXT, PREFILL, job_of


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny GPT-2 in float32."""
    folder = tmp_path_factory.mktemp("cpu")
    return build(job_of("gpt2", folder), out=folder / "b", target="cpu", max_seq_len=CONTEXT, buckets=(PREFILL,))


def test_it_is_the_executor_of_compiled_kernels() -> None:
    assert find("cpu").target is LLVM
    assert aliases() == {"cpu": "llvm"}


def test_windows_has_no_posix_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert find("cpu").target is IREE_CPU


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_cpu_of_the_first_bundles_is_iree(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert of_bundle({"target": "cpu"}).target is IREE_CPU
    assert of_bundle({"target": "llvm"}).target is LLVM


def test_a_bundle_names_what_running_it_takes(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise requirements.PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", version)
    with pytest.raises(BringupError, match="BU922: target `llvm` requires `llvmlite`, which is not") as caught:
        load(bundle)
    assert caught.value.findings[0].help == "run: pip install 'bringup[llvm]'"
