"""A package of its own that reads a quantised format: no part of bringup knows its words or its tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.schemes.registry import scheme_of
from bringup.compile.job import open_job
from tests.cli.test_plugins import package, run
from tests.quantised.checkpoints import is_quantised, plain

POINTS = "[bringup.schemes]\nhalves = halves:scheme\n"
# A format for this test: columns in reverse, each a byte about 100, with a step for each 32 columns of a row.
HALVES = '''
"""Reads `quant_method: halves`."""
from dataclasses import dataclass
from typing import ClassVar

from bringup.adapters import QuantisedMatrix, Scheme, Stored, fn
from bringup.graphs import Form, UnquantizedModules


def backwards(codes):
    return codes[:, ::-1].copy()


@dataclass(frozen=True, slots=True)
class Halves(Stored):
    scheme: ClassVar[str] = "halves"
    parts: ClassVar[tuple[str, ...]] = ("half_codes", "half_steps")
    unread: ClassVar[dict[str, str]] = {"half_note": "what the converter noted"}
    columns: int
    unquantized: UnquantizedModules

    def matrix(self, weight):
        rows, width = weight.tensors["half_codes"].shape
        codes = fn(backwards, weight.part("half_codes", "out in", "uint8"), axes="r c", dtype="uint8", r=rows, c=width)
        steps = weight.part("half_steps", f"in/{self.columns} out", "float16").mv("block out -> out block")
        form = Form(codes="uint8", block=(1, self.columns), scale="float16", offset=100)
        return QuantisedMatrix(self.scheme, form, {"codes": codes, "scales": steps})


def read(words):
    return Halves(words.size("columns"), UnquantizedModules.from_fields(words))


scheme = Scheme(name="halves", methods=("halves",), read=read, dequantise="halves-tool undo")
'''
WORDS = {"quant_method": "halves", "columns": 32, "ignore": ["lm_head"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package that reads the format, and a Llama in it."""
    site, source = tmp_path_factory.mktemp("site"), plain("llama", tmp_path_factory.mktemp("model"))
    package(site, "halves", POINTS, HALVES)
    tensors = load_file(source / "model.safetensors")
    stored: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if not is_quantised(name, array):
            stored[name] = array
            continue
        steps = np.abs(array.reshape(len(array), -1, 32)).max(-1).astype(np.float16) / np.float16(100)
        codes = np.rint(array / steps.astype(np.float32).repeat(32, 1) + 100).clip(0, 255).astype(np.uint8)
        stem = name.removesuffix("weight")
        stored |= {f"{stem}half_codes": codes[:, ::-1].copy(), f"{stem}half_steps": steps.T.copy()}
        stored[f"{stem}half_note"] = np.zeros(1, np.uint8)
    folder = tmp_path_factory.mktemp("halves")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((source / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": WORDS}), "utf-8")
    return site, folder


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Schemes of packages are loaded once in a process."""
    yield
    scheme_of.cache_clear()


def test_its_values(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    site, folder = folders
    monkeypatch.syspath_prepend(site)
    job = open_job(checkpoint=str(folder))
    name = "model.layers.1.mlp.down_proj"
    tensors = load_file(folder / "model.safetensors")
    codes, steps = tensors[f"{name}.half_codes"][:, ::-1], tensors[f"{name}.half_steps"].T.astype(np.float32)
    wanted = (codes.astype(np.float32) - 100) * steps.repeat(32, 1)
    np.testing.assert_array_equal(materialise(job.plan, job.checkpoint)[f"{name}.weight"], wanted)


def test_a_check_with_and_without_the_package(folders: tuple[Path, Path]) -> None:
    site, folder = folders
    done = run(site, "check", "--checkpoint", folder)
    assert done.exit_code == 0, done.output
    points = site / "halves-1.dist-info" / "entry_points.txt"
    points.write_text("")
    scheme_of.cache_clear()
    done = run(site, "check", "--checkpoint", folder)
    points.write_text(POINTS)
    assert done.exit_code == 1
    assert "error[BU137]: config.json sets `quant_method` = 'halves'" in done.stdout


def test_a_scheme_that_cannot_be_loaded(folders: tuple[Path, Path]) -> None:
    site, folder = folders
    points = site / "halves-1.dist-info" / "entry_points.txt"
    points.write_text(POINTS.replace(":scheme", ":read"))
    done = run(site, "check", "--checkpoint", folder)
    points.write_text(POINTS)
    assert done.exit_code == 2
    assert "error[BU026]: plugin `halves` (`halves:read`) is a function, not a Scheme" in done.output
