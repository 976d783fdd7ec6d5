"""parity.json in a bundle: whole or not at all, and no part of what was compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from bringup.compile.bundle.folder import check_files, read_manifest
from bringup.compile.job import open_job
from bringup.compile.parity.parity import Parity
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.verify.command import write_parity
from bringup.diagnostics import Diagnostic
from bringup.progress import Silent
from bringup.system import atomic
from tests.compile.planted import saved


class Heard(Silent):
    def __init__(self) -> None:
        self.warnings: list[Diagnostic] = []

    def warn(self, finding: Diagnostic) -> None:
        self.warnings.append(finding)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("bundle") / "model")


@pytest.fixture
def bundle(checkpoint: Path, tmp_path: Path) -> Path:
    return compiled(checkpoint, tmp_path / "b")


def compiled(checkpoint: Path, out: Path, **options: bool) -> Path:
    return build(open_job(checkpoint=str(checkpoint)), out=out, target="torch", buckets=(16,), **options)


def parity(tokens: int) -> Parity:
    return Parity(model="llama", target="torch", dtype="float32", reference="mine", tolerance=2e-4, tokens=tokens)


def tokens_of(bundle: Path) -> int:
    return json.loads((bundle / "parity.json").read_text("utf-8"))["tokens"]


def test_a_bundle_with_a_result_is_still_that_bundle(checkpoint: Path, bundle: Path) -> None:
    manifest = (bundle / "manifest.json").read_bytes()
    write_parity(bundle, parity(3), Silent())
    assert tokens_of(bundle) == 3
    assert (bundle / "manifest.json").read_bytes() == manifest
    assert json.loads((bundle / "parity.json").read_text())["manifest"] == sha256(manifest).hexdigest()
    check_files(bundle, read_manifest(bundle))
    assert list(load(bundle).generate([1, 2], max_new_tokens=2))
    assert compiled(checkpoint, bundle) == bundle  # the same inputs: it stays, and so does what was found of it
    assert tokens_of(bundle) == 3
    compiled(checkpoint, bundle, force=True)
    assert not (bundle / "parity.json").exists()  # nobody has verified this one
    check_files(bundle, read_manifest(bundle))


def test_a_write_that_fails_leaves_the_old_result(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parity(bundle, parity(3), Silent())
    before = sorted(path.name for path in bundle.iterdir())

    def full(self: atomic.NewFile) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.NewFile, "finish", full)
    heard = Heard()
    write_parity(bundle, parity(4), heard)
    assert [(finding.code, finding.severity) for finding in heard.warnings] == [("BU902", "warning")]
    assert tokens_of(bundle) == 3
    assert sorted(path.name for path in bundle.iterdir()) == before


# Without this module, which imports transformers.
PARITY = """
import os, signal, sys
from pathlib import Path
from bringup.system import atomic
from bringup.compile.parity.parity import Parity
from bringup.compile.verify.command import write_parity
from bringup.progress import Silent

def parity(tokens):
    return Parity(model="llama", target="torch", dtype="float32", reference="mine", tolerance=2e-4, tokens=tokens)
"""
KILLED = (
    PARITY
    + """
atomic.NewFile.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
write_parity(Path(sys.argv[1]), parity(4), Silent())
"""
)


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_the_old_result(checkpoint: Path, bundle: Path) -> None:
    write_parity(bundle, parity(3), Silent())
    done = subprocess.run([sys.executable, "-c", KILLED, str(bundle)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert tokens_of(bundle) == 3
    check_files(bundle, read_manifest(bundle))
    assert list(load(bundle).generate([1, 2], max_new_tokens=2))
    write_parity(bundle, parity(5), Silent())  # what the dead process left is in nobody's way
    assert tokens_of(bundle) == 5
    assert compiled(checkpoint, bundle, force=True) == bundle


READ_ONLY = (
    PARITY
    + """
from tests.resources.test_refusals import without_privileges

class Heard(Silent):
    warnings = []

    def warn(self, finding):
        self.warnings.append(finding)

if not os.geteuid():
    without_privileges()
heard = Heard()
write_parity(Path(sys.argv[1]), parity(4), heard)
print([(finding.code, finding.severity.value) for finding in heard.warnings])
"""
)


@pytest.mark.slow
def test_a_bundle_that_takes_no_files(bundle: Path) -> None:
    """The result is printed all the same; that it was not put into the bundle is a warning."""
    write_parity(bundle, parity(3), Silent())
    if not os.geteuid():
        os.chown(bundle, 65534, 65534)
    bundle.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(bundle)], capture_output=True, text=True, check=True
        )
    finally:
        bundle.chmod(0o755)
    assert done.stdout == "[('BU901', 'warning')]\n"
    assert tokens_of(bundle) == 3
