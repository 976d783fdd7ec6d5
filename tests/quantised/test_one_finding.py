"""One mistake in the scales of a quantised checkpoint is one finding, which names every tensor that has it."""

from __future__ import annotations

import json
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


def stated(**words: object) -> Edit:
    """The JSON of bitsandbytes with other values; None removes a key."""

    def edit(state: np.ndarray) -> np.ndarray:
        found = {key: value for key, value in {**json.loads(state.tobytes()), **words}.items() if value is not None}
        return np.frombuffer(json.dumps(found).encode(), np.uint8)

    return edit


def turned(state: np.ndarray) -> np.ndarray:
    return stated(shape=json.loads(state.tobytes())["shape"][::-1])(state)


STATES = [
    ("nf4", stated(shape=[1, 2]), "shape [1, 2]"),
    ("nf4 nested", stated(shape=[96.0, 64]), "shape [96.0, 64]"),
    ("nf4", turned, "a shape with columns before rows"),
    ("nf4 across rows", stated(shape="96, 64"), "shape '96, 64'"),
    ("fp4 of 128", stated(shape=None), "shape None"),
    ("nf4", stated(dtype="int8"), "dtype 'int8'"),
    ("nf4", stated(dtype=None), "dtype None"),
    ("nf4", stated(blocksize=True), "blocksize True"),
    ("nf4", stated(nested_offset=0.5), "nested_offset 0.5"),
    ("nf4 nested", stated(nested_dtype="float16"), "nested_dtype 'float16'"),
    ("nf4 nested", stated(nested_offset=float("nan")), "nested_offset nan"),
    ("nf4 nested", stated(nested_offset=1e300), "nested_offset 1e+300"),
    ("nf4 nested", stated(nested_offset=10**390), "nested_offset 1000000"),
]


@pytest.mark.parametrize(("prefix", "count"), [("", EVERY), ("1.mlp.up_proj.weight.quant_state.bitsandbytes_", ONE)])
@pytest.mark.parametrize(("name", "edit", "said"), STATES, ids=range(len(STATES)))
def test_a_wrong_state(folder: Path, name: str, edit: Edit, said: str, prefix: str, count: int) -> None:
    """Values that `QuantState.from_dict` would take, or fail on, and that contradict the tensors or the graph."""
    job = spoilt(folder, name, f"{prefix}_{name[:3]}", edit)
    assert not check(job).findings
    (finding,) = value_findings(job)
    assert finding.code == "BU115"
    assert f"`quant_state` has {said}" in finding.message
    assert (finding.parameter == "model.layers.1.mlp.up_proj.weight") == (count == ONE)
