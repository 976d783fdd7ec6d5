"""Quantisation in a file next to config.json: ModelOpt's hf_quant_config.json and AutoAWQ's quant_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Diagnostic, Severity
from tests.adapters.servers import Server, hub
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS, modelopt
from tests.quantised.int4_formats import FORMATS as INT4


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


CONFIG = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
SAME = modelopt("NVFP4", group_size=16)
SAME["quantization"]["exclude_modules"] = ["lm_head"]


def both(folder: Path, place: Path, config: Mapping[str, Any], other: str) -> list[Diagnostic]:
    """The findings on a copy of a folder with these keys in config.json, and this text in hf_quant_config.json."""
    for path in folder.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    found = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps(found | {"quantization_config": config}), "utf-8")
    (place / "hf_quant_config.json").write_text(other, "utf-8")
    job = open_job(checkpoint=str(place))
    assert job.config["quantization_config"] == config
    return check(job).findings


@pytest.mark.parametrize("other", [SAME, {"quantization": {"quant_algo": "nvfp4"}}, {"quantization": None}, {}])
def test_two_files_that_agree(folder: Path, tmp_path: Path, other: Mapping[str, Any]) -> None:
    assert not both(folder, tmp_path, CONFIG, json.dumps(other))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"quant_algo": "FP8"}, ("`quant_algo` = 'NVFP4'", "`quant_algo` = 'FP8'")),
        ({"exclude_modules": []}, ("`ignore` = ['lm_head']", "`exclude_modules` = []")),
    ],
)
def test_two_files_that_differ(folder: Path, tmp_path: Path, words: Mapping[str, Any], said: tuple[str, str]) -> None:
    """The values of config.json count; one warning names both files with their values."""
    other = {"quantization": {**SAME["quantization"], **words}}
    (finding,) = both(folder, tmp_path, CONFIG, json.dumps(other))
    assert (finding.code, finding.severity) == ("BU151", Severity.WARNING)
    assert finding.message.startswith(f"config.json sets {said[0]}, and hf_quant_config.json sets {said[1]}")


@pytest.mark.parametrize(
    "config", [CONFIG | {"quant_algo": "FP8"}, {"quant_method": "fp8", "activation_scheme": "dynamic"}]
)
def test_two_files_of_which_config_json_is_wrong(folder: Path, tmp_path: Path, config: Mapping[str, Any]) -> None:
    """One error: the tensors contradict config.json, and what the other file says is a part of the fix."""
    (finding,) = both(folder, tmp_path, config, json.dumps(SAME))
    assert finding.code == "BU137"
    assert "and hf_quant_config.json sets `quant_" in finding.help


def test_only_the_other_file_is_wrong(folder: Path, tmp_path: Path) -> None:
    """Messages name the file that states the format, and its own keys; fixes are edits of that file."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(modelopt("FP8")), "utf-8")
    (finding,) = check(open_job(checkpoint=str(tmp_path))).findings
    assert finding.code == "BU137"
    assert finding.message.startswith("hf_quant_config.json sets `quant_algo` = 'FP8', and 14 matrices are in another")
    assert finding.help.startswith("remove hf_quant_config.json, and set in config.json:")
    assert "`quant_method`" not in finding.message


def test_the_other_file_of_plain_weights(tmp_path: Path) -> None:
    quantised, exact = write("llama", FORMATS["modelopt-nvfp4"], tmp_path)
    (quantised / "model.safetensors").write_bytes((exact / "model.safetensors").read_bytes())
    (finding,) = check(open_job(checkpoint=str(quantised))).findings
    assert finding.code == "BU137"
    assert finding.message.startswith("hf_quant_config.json sets `quant_algo` = 'NVFP4', ")
    assert finding.help == "if the weights were dequantised, remove hf_quant_config.json"


def test_a_file_of_the_command(folder: Path, tmp_path: Path) -> None:
    """With --config, the checkpoint's own files state nothing."""
    config = {**open_checkpoint(str(folder)).config, "quantization_config": {**CONFIG, "quant_algo": "FP8"}}
    (tmp_path / "mine.json").write_text(json.dumps(config), "utf-8")
    (finding,) = check(open_job(checkpoint=str(folder), config=tmp_path / "mine.json")).findings
    assert finding.message.startswith(
        f"{tmp_path / 'mine.json'} sets `quant_method` = 'modelopt', `quant_algo` = 'FP8'"
    )


@pytest.mark.parametrize("key", ["compression_config", "quantization_config"])
def test_plain_weights_with_either_key(tmp_path: Path, key: str) -> None:
    """Both names of the group have the same finding, and it names the one that the file has."""
    _, exact = write("llama", FORMATS["modelopt-nvfp4"], tmp_path)
    config = json.loads((exact / "config.json").read_text("utf-8")) | {key: FORMATS["ct-int8"].words}
    (exact / "config.json").write_text(json.dumps(config), "utf-8")
    (finding,) = check(open_job(checkpoint=str(exact))).findings
    assert finding.code == "BU137"
    assert finding.help == f"if the weights were dequantised, remove `{key}` from config.json"


def test_a_second_file_that_is_not_json(folder: Path, tmp_path: Path) -> None:
    (finding,) = both(folder, tmp_path, CONFIG, "{")
    assert (finding.code, finding.severity) == ("BU202", Severity.WARNING)


@pytest.mark.parametrize("algorithm", ["W4A16_AWQ", "W4A8_AWQ", "INT8_SQ"])
def test_algorithms_that_are_refused(folder: Path, tmp_path: Path, algorithm: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(modelopt(algorithm)), "utf-8")
    report = check(open_job(checkpoint=str(tmp_path)))
    assert not report.ok
    assert any(f"`quant_algo` = '{algorithm}'" in finding.message for finding in report.findings), report.findings


EARLY = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM", "modules_to_not_convert": None}


@pytest.fixture(scope="module")
def awq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of AutoAWQ before its keys were in config.json."""
    place = write("llama of words", INT4["awq"], tmp_path_factory.mktemp("awq"))[0]
    config = json.loads((place / "config.json").read_text("utf-8"))
    (place / "config.json").write_text(json.dumps(config | {"quantization_config": None}), "utf-8")
    (place / "quant_config.json").write_text(json.dumps(EARLY), "utf-8")
    return place


def test_quant_config_of_every_source(awq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: path.read_bytes() for path in awq.iterdir()}
    with Server(files) as server, hub(files) as repository:
        monkeypatch.setenv("HF_ENDPOINT", repository.url)
        for source in (str(awq), server.url, f"{server.url}/model.safetensors", "hf://org/toy"):
            opened = open_checkpoint(source, headers_only=True)
            assert opened.config["quantization_config"] == {"quant_method": "awq", **EARLY}, source
            assert not check(open_job(checkpoint=opened)).findings


def test_quant_config_of_another_program(awq: Path, tmp_path: Path) -> None:
    for path in awq.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "quant_config.json").write_text(json.dumps({"anything": 1}), "utf-8")
    assert open_checkpoint(str(tmp_path), headers_only=True).config["quantization_config"] is None


@pytest.mark.parametrize("method", [{}, {"quant_method": "awq"}])
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ({}, "", ""),
        ({"bits": 4, "group_size": 32}, "", ""),
        ({"q_group_size": 64}, "BU102", "`q_group_size` is 64"),
        ({"w_bit": 8}, "BU122", "`w_bit` = 8"),
        ({"version": "GEMV"}, "BU122", "`version` = 'GEMV'"),
        ({"q_group_size": "32"}, "BU121", "`q_group_size` is '32'"),
        ({"group_size": 64}, "BU122", "`q_group_size` = 32 and `group_size` = 64"),
        ({"bits": 8}, "BU122", "`w_bit` = 4 and `bits` = 8"),
    ],
)
def test_early_words_in_config_json(awq: Path, method: Any, words: Any, code: str, said: str) -> None:
    opened = open_checkpoint(str(awq))
    config = {**opened.config, "quantization_config": {**method, **EARLY, **words}}
    found = check(open_job(checkpoint=opened, config=config)).findings
    assert [finding.code for finding in found] == ([code] if code else [])
    assert all(said in finding.message for finding in found)


def test_early_words_that_are_wrong(awq: Path, tmp_path: Path) -> None:
    """The block size is to be corrected in quant_config.json."""
    for path in awq.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "quant_config.json").write_text(json.dumps(EARLY | {"q_group_size": 64}), "utf-8")
    (finding,) = check(open_job(checkpoint=str(tmp_path))).findings
    assert finding.help.endswith("set `q_group_size` to 32 in quant_config.json")


def test_values_of_early_words(awq: Path, tmp_path: Path) -> None:
    """The same arrays as with the keys that AutoAWQ wrote later."""
    later = open_job(checkpoint=str(write("llama of words", INT4["awq"], tmp_path)[0]))
    job = open_job(checkpoint=str(awq))
    wanted = materialise(later.plan, later.checkpoint)
    for name, array in materialise(job.plan, job.checkpoint).items():
        np.testing.assert_array_equal(array, wanted[name], name)


# The group of a checkpoint's config.json, a file of the quantiser next to it or a file of --config, and the place that
# messages name.
PLACES = {
    "config.json": "`quantization_config` of config.json sets `w_bit` = 8",
    "quant_config.json": "quant_config.json sets `w_bit` = 8",
    "own.json": "`quantization_config` of own.json sets `w_bit` = 8",
    "text_config": "`text_config.quantization_config` of config.json sets `w_bit` = 8",
}


@pytest.mark.parametrize("place", PLACES)
def test_messages_name_the_place_of_a_wrong_key(awq: Path, tmp_path: Path, place: str) -> None:
    for path in awq.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config, wrong = json.loads((awq / "config.json").read_text("utf-8")), EARLY | {"w_bit": 8}
    del config["quantization_config"]
    (tmp_path / "quant_config.json").unlink()
    if place == "quant_config.json":
        files = {place: wrong}
    elif place == "text_config":
        files = {"config.json": config | {"text_config": {"quantization_config": wrong}}}
    else:
        files = {place: config | {"quantization_config": wrong}}
    for name, words in files.items():
        (tmp_path / name).write_text(json.dumps(words), "utf-8")
    own = str(tmp_path / place) if place == "own.json" else None
    job = open_job(checkpoint=str(tmp_path), config=own, allow={"text_config": "a test"})
    (finding,) = (found for found in job.findings if found.code == "BU122")
    assert finding.message.replace(f"{tmp_path}/", "").startswith(f"{PLACES[place]}; ")


WRONG = {
    "BU120": ({"w_bits": 4}, "in quant_config.json, key `w_bits` = 4 is not read by the llama quantization graph"),
    "BU121": ({"zero_point": "x"}, "in quant_config.json, key `zero_point` is 'x'; "),
    "BU122": ({"lm_head": True}, "quant_config.json sets `lm_head` = True; "),
    "BU124": ({"q_group_size": 10**30}, "in quant_config.json, key `q_group_size` has 31 digits"),
}


@pytest.mark.parametrize("code", WRONG)
def test_each_code_names_the_file(awq: Path, tmp_path: Path, code: str) -> None:
    words, message = WRONG[code]
    for path in awq.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "quant_config.json").write_text(json.dumps(EARLY | words), "utf-8")
    (finding,) = (found for found in open_job(checkpoint=str(tmp_path)).findings if found.code == code)
    assert finding.message.startswith(message)
    assert "--allow-config" not in finding.help
    assert (finding.code != "BU120") or finding.help.endswith("remove it from quant_config.json")
