"""A build without a scheme: its checkpoints are refused by name, whoever is given them, and no tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import bringup as package
from bringup.adapters import schemes
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.schemes import registry
from bringup.adapters.schemes.scheme import Scheme
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.diagnostics import BringupError
from bringup.spec import TensorInfo
from tests.models import test_gpt_oss_mxfp4 as gpt_oss
from tests.quantised import test_modelopt as modelopt
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS, Format
from tests.quantised.int4_formats import FORMATS as INT4


def written(family: str, form: Format) -> Callable[[Path], Checkpoint]:
    """A checkpoint of the family in the format, written into a folder."""
    return lambda folder: open_checkpoint(write(family, form, folder)[0])


NVFP4 = FORMATS["modelopt-nvfp4-config"]
# A checkpoint of each method that bringup reads: a method without one is a failure below.
CHECKPOINTS: dict[str, Callable[[Path], Checkpoint]] = {
    "awq": written("llama of words", INT4["awq"]),
    "gptq": written("deepseek_v3 of words", INT4["gptq"]),
    "fp8": written("llama", FORMATS["fp8-tensor"]),
    "fbgemm_fp8": written("phi3", FORMATS["fbgemm"]),
    "compressed-tensors": written("qwen3_moe", FORMATS["ct-int4"]),
    "bitsandbytes": written("mixtral of words", INT4["nf4"]),
    "modelopt": written("llama", NVFP4),
    "modelopt_fp4": written("phi3", replace(NVFP4, words={**NVFP4.words, "quant_method": "modelopt_fp4"})),
    "modelopt_mixed": lambda folder: modelopt.mixed("qwen3_moe", folder, "modelopt_mixed")[0],
    "quark": written("qwen3_moe", FORMATS["quark-fp8"]),
    "auto-round": written("gpt_neox of words", INT4["auto-round"]),
    "mxfp4": lambda folder: open_checkpoint(gpt_oss.write("square", folder).checkpoint),
}


@pytest.fixture(params=sorted(registry.OWN))
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A `quant_method` whose scheme this build lacks: each that a scheme of bringup reads."""
    monkeypatch.setattr(registry, "OWN", {key: file for key, file in registry.OWN.items() if key != request.param})
    registry.scheme_of.cache_clear()
    yield request.param
    registry.scheme_of.cache_clear()


@pytest.fixture
def checkpoint(method: str, tmp_path: Path) -> Checkpoint:
    return CHECKPOINTS[method](tmp_path)


def test_every_scheme_of_the_folder_is_in_the_table() -> None:
    """The methods of all files with a `scheme` are the registry's, and each has a checkpoint here."""
    files = sorted(Path(schemes.__file__).parent.glob("*.py"))
    modules = [import_module(f"{schemes.__name__}.{file.stem}") for file in files if file.stem != "__init__"]
    found = [found for module in modules if isinstance(found := getattr(module, "scheme", None), Scheme)]
    assert {method for each in found for method in each.methods} == registry.OWN.keys() == CHECKPOINTS.keys()


def test_it_is_refused_by_name(method: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """By `check` with one finding a format; by what makes arrays or a bundle before a tensor is read."""
    formats = 2 if method == "modelopt_mixed" else 1

    def never(info: TensorInfo) -> np.ndarray:
        raise AssertionError(f"read {info.name}")

    job = open_job(checkpoint=replace(checkpoint, read=never, load=None))
    findings = check(job).findings
    assert len(findings) == formats
    for finding in findings:
        assert finding.code in ("BU122", "BU137")
        assert f"`quant_method` = '{method}'" in finding.message
    found = {name for finding in findings for name in finding.sources}
    assert {name for name in checkpoint.headers if name.endswith(".k_scale")} <= found
    out = tmp_path / "bundle"
    for load in (lambda: package.adapt(job), lambda: build(job, out=out, target="torch", max_seq_len=64, buckets=[64])):
        with pytest.raises(BringupError) as caught:
            load()
        assert [f"{method}" in each.message for each in caught.value.findings] == [True] * formats
    assert not out.exists()
    assert not list(tmp_path.glob(".bundle*"))
