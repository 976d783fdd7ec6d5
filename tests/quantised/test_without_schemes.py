"""A build without a scheme: its checkpoints are refused by name, whoever is given them, and no tensor is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bringup as package
from bringup.adapters.schemes import registry
from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.diagnostics import BringupError
from bringup.spec import TensorInfo
from tests.models import test_gpt_oss_mxfp4 as gpt_oss
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

CHECKPOINTS = {
    "awq": ("llama of words", INT4["awq"]),
    "gptq": ("deepseek_v3 of words", INT4["gptq"]),
    "fp8": ("llama", FORMATS["fp8-tensor"]),
    "fbgemm_fp8": ("phi3", FORMATS["fbgemm"]),
    "compressed-tensors": ("qwen3_moe", FORMATS["ct-int4"]),
    "bitsandbytes": ("mixtral of words", INT4["nf4"]),
    "modelopt": ("llama", FORMATS["modelopt-nvfp4-config"]),
    "quark": ("qwen3_moe", FORMATS["quark-fp8"]),
    "auto-round": ("gpt_neox of words", INT4["auto-round"]),
}


@pytest.fixture(params=[*sorted(CHECKPOINTS), "mxfp4"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A `quant_method` whose scheme this build lacks."""
    monkeypatch.setattr(registry, "OWN", {key: file for key, file in registry.OWN.items() if key != request.param})
    registry.scheme_of.cache_clear()
    yield request.param
    registry.scheme_of.cache_clear()


@pytest.fixture
def folder(method: str, tmp_path: Path) -> Path:
    if method == "mxfp4":
        return gpt_oss.write("square", tmp_path).checkpoint
    family, form = CHECKPOINTS[method]
    quantised, _ = write(family, form, tmp_path)
    return quantised


def test_it_is_refused_by_name(method: str, folder: Path, tmp_path: Path) -> None:
    """By `check` with one finding; by whoever would make arrays or a bundle before a tensor is read."""
    opened = open_job(checkpoint=str(folder)).checkpoint

    def never(info: TensorInfo) -> np.ndarray:
        raise AssertionError(f"read {info.name}")

    job = open_job(checkpoint=replace(opened, read=never, load=None))
    (finding,) = check(job).findings
    assert finding.code in ("BU122", "BU137")
    assert f"`quant_method` = '{method}'" in finding.message
    out = tmp_path / "bundle"
    for load in (lambda: package.adapt(job), lambda: build(job, out=out, target="torch", max_seq_len=64, buckets=[64])):
        with pytest.raises(BringupError) as caught:
            load()
        assert [f"{method}" in each.message for each in caught.value.findings] == [True]
    assert not out.exists()
    assert not list(tmp_path.glob(".bundle*"))
