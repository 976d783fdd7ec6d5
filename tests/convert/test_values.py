"""NaN, infinity and matrices of zeros are written as they are, with a warning that names the first of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply.parallel import Parallel
from bringup.compile.convert import shards
from bringup.compile.convert.convert import convert
from bringup.compile.convert.export import export
from bringup.compile.convert.staging import Staging
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.killed import LEAST

NAN, ZERO, NORM = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.k_proj.weight", "model.norm.weight"
FOUND = f"`{NAN}` holds NaN or infinity: 3 values, the first at `{NAN}`[20, 5]"


def folder(place: Path, *wrong: str, **sizes: int) -> Path:
    """A model whose tensors of these names have such values. Row 20 of 24 is in the second half: of rank 1 of 2."""
    tensors, config = models.llama(**sizes)
    for name in wrong:
        if name == NAN:
            tensors[name][20, 5], tensors[name][21, 3], tensors[name][23, 0] = np.nan, -np.inf, np.inf
        else:
            tensors[name][...] = 0 if name == ZERO else np.nan
    place.mkdir()
    save_file(tensors, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))
    return place


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("to", "tp"), [("graph", 1), ("graph", 2), ("fused", 1), ("fused", 2), ("trtllm", 2)])
def test_convert(to: str, tp: int, dtype: str, tmp_path: Path) -> None:
    """In a matrix of its own, in a part of a rank, and in a fused one."""
    job = open_job(checkpoint=folder(tmp_path / "llama", NAN), dtype=dtype)
    with pytest.warns(UserWarning, match="BU13[34]") as heard:
        convert(job, tmp_path / "out", to=to, parallel=Parallel(tp=tp))
    (message,) = [str(warning.message) for warning in heard]
    assert message.startswith("BU133: `")
    assert message.endswith(FOUND.partition("`")[2].partition("`")[2])
    assert message == f"BU133: {FOUND}" or to == "trtllm"  # which has names of its own


def test_all_of_a_kind_are_one_warning(bringup: Bringup, tmp_path: Path) -> None:
    source = folder(tmp_path / "llama", NAN, NORM, ZERO)
    result = bringup("convert", "--checkpoint", source, "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert f"warning[BU133]: `{NAN}, {NORM}` holds NaN or infinity: 19 values, the first at" in result.stderr
    assert "`bringup check --values` reports it as an error" in result.stderr
    assert f"warning[BU134]: `{ZERO}` is all zeros" in result.stderr
    written, read = load_file(tmp_path / "out/model.safetensors"), load_file(source / "model.safetensors")
    assert all(same_bits(written[name], read[name]) for name in (NAN, ZERO, NORM))
    assert bringup("check", "--checkpoint", source, "--values").exit_code == 1


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_shards_that_are_reused(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run, which computes nothing again, has the same warnings."""
    monkeypatch.setattr(shards, "SHARD", LEAST)
    job = open_job(checkpoint=folder(tmp_path / "llama", NAN, ZERO))
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "take_into", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(job, tmp_path / "out", form=form)
    monkeypatch.setattr(shards, "fill", None)
    with pytest.warns(UserWarning, match="BU13[34]") as heard:
        convert(job, tmp_path / "out", form=form)
    assert {str(warning.message) for warning in heard} == {f"BU133: {FOUND}", f"BU134: `{ZERO}` is all zeros"}


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_export(tmp_path: Path) -> None:
    source = folder(tmp_path / "llama", NAN)
    with pytest.warns(UserWarning, match="BU13[34]") as heard:
        export(open_job(checkpoint=source), tmp_path / "out")
    assert [str(warning.message) for warning in heard] == [f"BU133: {FOUND}"]
    assert (tmp_path / "out/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("quantize", ["int8", "int4-g8", "fp8", "mxfp4"])
def test_a_matrix_with_nan_cannot_be_quantised(quantize: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "llama", NAN, m=32, dim=8, ffn=32)
    job = open_job(checkpoint=source, options=GraphOptions(quantize=quantize))
    with pytest.raises(BringupError, match=f"BU133: `{NAN}` holds NaN or infinity, which cannot be quantised"):
        export(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_next_to_quantised_ones(tmp_path: Path) -> None:
    source = folder(tmp_path / "llama", NORM)
    with pytest.warns(UserWarning, match="BU13[34]") as heard:
        export(open_job(checkpoint=source, options=GraphOptions(quantize="int8")), tmp_path / "out")
    message = f"BU133: `{NORM}` holds NaN or infinity: 16 values, the first at `{NORM}`[0]"
    assert [str(warning.message) for warning in heard] == [message]
