"""`merge_lora` and `convert_lora` where a number does not fit the dtype that is written: an error, and no file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.compile.job import open_job
from bringup.compile.lora.convert import convert_lora
from bringup.compile.lora.export import merge_lora
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.diagnostics import BringupError
from tests.lora.written import Case, write

NAME = "model.layers.0.self_attn.q_proj.weight"
STEM = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
LARGEST = 65504.0  # IEEE 754 binary16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base in float16, and an adapter that adds `B[1, 0] · A[0, 2]` to one element, and nothing to others."""
    case = Case("llama", {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], "layers_to_transform": [0]})
    written = write(case, tmp_path_factory.mktemp("overflow"))
    file = written.base / "model.safetensors"
    tensors = {name: array.astype(np.float16) for name, array in load_file(file).items()}
    tensors[NAME][1, 2] = LARGEST
    save_file(tensors, file, metadata={"format": "pt"})
    config = written.base / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float16"}))
    return written.base, written.lora


def added(lora: Path, number: float) -> None:
    file = lora / "adapter_model.safetensors"
    tensors = {name: np.zeros_like(array) for name, array in load_file(file).items()}
    tensors[f"{STEM}A.weight"][0, 2], tensors[f"{STEM}B.weight"][1, 0] = number, 1
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", ["auto", "float32"], ids=["as stored", "computed in float32"])
def test_a_sum_beyond_float16_is_an_error_and_nothing_is_written(folders, dtype: str, tmp_path: Path) -> None:
    """Binary16 rounds numbers from 65,520 on to infinity, halfway to the next power of two; 65,519 is rounded down."""
    base, lora = folders
    job = open_job(checkpoint=str(base), dtype=dtype)
    added(lora, 16)
    with pytest.raises(BringupError) as error:
        merge_lora(job, load_lora(job, lora), tmp_path / "merged")
    finding = error.value.findings[0]
    assert finding.code == "BU174"
    assert (
        finding.message == f"`{NAME}` would be 65,520 at [1, 2] with the adapter merged in, and float16 ends at 65,504"
    )
    assert finding.parameter == NAME
    assert not (tmp_path / "merged").exists()
    added(lora, 15)
    merge_lora(job, load_lora(job, lora), tmp_path / "merged")
    found, own = (load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", base))
    assert found.keys() == own.keys()
    for name, array in own.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == np.float16


def test_what_the_base_has_beyond_its_dtype_is_not_the_adapters(folders) -> None:
    base, lora = folders
    file = base / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, NAME: np.where(tensors[NAME] == LARGEST, np.inf, tensors[NAME])}, file)
    added(lora, 16)
    job = open_job(checkpoint=str(base))
    found = merged(job, load_lora(job, lora), [NAME])[NAME]
    save_file(tensors, file, metadata={"format": "pt"})
    assert np.isinf(found[1, 2])
    assert np.isfinite(np.delete(found.ravel(), found.shape[1] + 2)).all()


def test_a_factor_beyond_the_storage_type_is_an_error(folders, tmp_path: Path) -> None:
    base, lora = folders
    job = open_job(checkpoint=str(base))
    added(lora, 1e5)
    with pytest.raises(BringupError) as error:
        convert_lora(job, str(lora), tmp_path / "out", dtype="float16")
    assert error.value.findings[0].code == "BU174"
    assert error.value.findings[0].message == "module 1 of layer 0 has 1e+05, which is out of the range of float16"
    assert not (tmp_path / "out").exists()
    convert_lora(job, str(lora), tmp_path / "out", dtype="bfloat16")
