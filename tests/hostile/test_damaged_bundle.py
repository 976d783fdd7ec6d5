"""A damaged file of a bundle: the message names it, whatever the code that reads it raises."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bringup
from bringup.compile.bundle.manifest import AGAIN
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.diagnostics import BringupError
from tests.hostile.test_config import GPT2


def empty(data: bytes) -> bytes:
    return b""


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def misspelt(data: bytes) -> bytes:
    """With a wrong character in the JSON of a program, for which torch raises a TypeError; others are cut."""
    for key, wrong in ((b'"storage_offset"', b'"storage_ofsset"'), (b'":', b'"=')):
        if key in data:
            return data.replace(key, wrong)
    return data[:-1]


def other(data: bytes) -> bytes:
    return b'{"kernels": [}'


@pytest.fixture(scope="module", params=["torch", "cpu"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = open_job(None, "dummy", config=GPT2)
    return build(job, out=tmp_path_factory.mktemp("whole") / "b", target=request.param, buckets=(16,))


@pytest.mark.parametrize("damage", [empty, cut, misspelt, other], ids=lambda damage: damage.__name__)
def test_each_file_is_named(damage: Callable[[bytes], bytes], whole: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(whole, tmp_path / "b"))
    names = json.loads((bundle / "manifest.json").read_text())["files"]
    for name in ("manifest.json", *names):
        data = (bundle / name).read_bytes()
        (bundle / name).write_bytes(damage(data))
        with pytest.raises(BringupError) as caught:
            bringup.load(bundle)
        (finding,) = caught.value.findings
        assert (name in finding.message, finding.help, caught.value.exit_code) == (True, AGAIN, 1), finding
        (bundle / name).write_bytes(data)


def test_two_files(whole: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(whole, tmp_path / "b"))
    names = list(json.loads((bundle / "manifest.json").read_text())["files"])[:2]
    for name in names:
        (bundle / name).write_bytes(b"")
    with pytest.raises(BringupError, match=f"`{names[0]}`, `{names[1]}` are damaged"):
        bringup.load(bundle)
