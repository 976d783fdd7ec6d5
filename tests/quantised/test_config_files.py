"""hf_quant_config.json next to a config.json that says nothing of quantisation, in folders and behind HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.adapters.servers import Server, hub
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS, modelopt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("llama", FORMATS["modelopt-nvfp4"], tmp_path_factory.mktemp("nvfp4"))[0]


def test_every_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = {"quant_method": "modelopt", **modelopt("NVFP4", group_size=16)}
    with Server(files) as server, hub(files) as repository:
        monkeypatch.setenv("HF_ENDPOINT", repository.url)
        for source in (str(folder), server.url, f"{server.url}/model.safetensors", "hf://org/toy"):
            opened = open_checkpoint(source, headers_only=True)
            assert opened.config["quantization_config"] == words, source
            assert not check(open_job(checkpoint=opened)).findings


def test_the_words_of_config_json_count(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    words = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": words}), "utf-8")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(modelopt("FP8")), "utf-8")
    job = open_job(checkpoint=str(tmp_path))
    assert job.config["quantization_config"] == words
    assert not check(job).findings


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ", "INT8_SQ"])
def test_algorithms_that_are_refused(folder: Path, tmp_path: Path, algorithm: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(modelopt(algorithm)), "utf-8")
    report = check(open_job(checkpoint=str(tmp_path)))
    assert not report.ok
    assert any(f"`quant_algo` = '{algorithm}'" in finding.message for finding in report.findings), report.findings
