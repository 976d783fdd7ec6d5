"""One mistake in the scales of a quantised checkpoint is one finding, which names every tensor that has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.values import value_findings
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

Edit = Callable[[np.ndarray], np.ndarray]
EVERY, ONE = 14, 1  # matrices of two layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("one")


def spoilt(folder: Path, name: str, end: str, edit: Edit) -> Job:
    quantised, _ = write("llama of words" if name in INT4 else "llama", {**FORMATS, **INT4}[name], folder)
    opened = open_job(checkpoint=str(quantised)).checkpoint
    tensors = {name: opened.read(info) for name, info in opened.headers.items()}
    for each in [each for each in tensors if each.endswith(end)]:
        tensors[each] = np.ascontiguousarray(edit(tensors[each]))
    return open_job(checkpoint=dict_checkpoint(tensors, opened.config))


def as_integers(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.int32)


def twice(scale: np.ndarray) -> np.ndarray:
    return scale.reshape(-1).repeat(2)


HEADERS = [
    ("modelopt-nvfp4", "weight_scale_2", twice, "BU102", "is [2], and the format has one value for each matrix"),
    ("ct-nvfp4", "weight_global_scale", twice, "BU102", "is [2], and the format has one value for each matrix"),
    ("modelopt-nvfp4", "weight_scale_2", as_integers, "BU108", "is stored as int32"),
    ("int8", "SCB", as_integers, "BU108", "SCB` is stored as int32"),
]


@pytest.mark.parametrize(("prefix", "count"), [("", EVERY), ("1.mlp.up_proj.", ONE)])
@pytest.mark.parametrize(("name", "end", "edit", "code", "said"), HEADERS, ids=range(len(HEADERS)))
def test_found_by_headers(
    folder: Path, name: str, end: str, edit: Edit, code: str, said: str, prefix: str, count: int
) -> None:
    (finding,) = check(spoilt(folder, name, f"{prefix}{end}", edit)).findings
    assert finding.code == code
    assert said in finding.message
    assert len(finding.sources) == count
    assert all(source.endswith(end) for source in finding.sources)


@pytest.mark.parametrize("end", ["weight_scale_2", "1.mlp.up_proj.weight_scale_2"])
def test_an_infinite_scale(folder: Path, end: str) -> None:
    job = spoilt(folder, "modelopt-nvfp4", end, lambda scale: np.full_like(scale, np.inf))
    assert not check(job).findings
    assert [finding.code for finding in value_findings(job)] == ["BU133"]
