"""Findings on a config point to its file, and to the line of the key, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from bringup.adapters.checkpoints.config_lines import line_of
from tests.cli.conftest import Bringup
from tests.convert import models

TEXT = """{
  "note": "\\"inner\\": {", "list": [{"inner": 1}, 2],
  "inner": 3,
  "outer": {
    "deep": {"inner": 4},
    "inner":
      5
  }, "last": [], "after": {}
}
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("note", 2), ("inner", 3), ("outer", 4), ("outer.deep.inner", 5), ("outer.inner", 6), ("last", 8), ("after", 8),
        ("deep", 0), ("outer.absent", 0), ("outer.deep.inner.x", 0), ("", 0),
    ],
)  # fmt: skip
def test_the_line_of_a_key(key: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(TEXT)
    json.loads(TEXT)
    assert line_of(tmp_path / "config.json", key) == line


@pytest.mark.parametrize("data", [b"", b"}]}", b"\xff\xfe{", b'{"b"' + b" " * (1 << 20) + b": 1}"])
def test_files_without_lines(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    assert line_of(tmp_path / "config.json", "b") == 0
    assert line_of(tmp_path / "absent.json", "b") == 0


ROPE = {"rope_theta": 10000.0, "rope_type": "unheard-of"}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": ({"residual_scale": 2.0}, "BU120", "residual_scale"),
    "misspelt": ({"rms_norm_epz": 1e-5}, "BU120", "rms_norm_epz"),
    "type": ({"hidden_size": "sixteen"}, "BU121", "hidden_size"),
    "nested": ({"rope_parameters": ROPE}, "BU122", "rope_type"),
    "value": ({"hidden_act": "snake"}, "BU122", "hidden_act"),
    "architecture": ({"architectures": ["Nothing"]}, "BU125", "architectures"),
}


def written(folder: Path, words: dict[str, Any]) -> Path:
    tensors, config = models.llama()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | words, indent=1))
    return folder


def line_with(file: Path, key: str) -> int:
    """The only line of a file with a key."""
    (line,) = [number for number, text in enumerate(file.read_text().splitlines(), 1) if f'"{key}"' in text]
    return line


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("given", [False, True])
def test_a_key(case: str, given: bool, bringup: Bringup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In config.json of the checkpoint, or in the file of --config."""
    words, code, key = CASES[case]
    folder = written(tmp_path / "llama", words)
    file, more = folder / "config.json", list[object]()
    if given:
        file = file.rename(tmp_path / "other.json")
        more = ["--config", file]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    line, name = line_with(file, key), str(file.relative_to(tmp_path))

    def shown(format: str) -> str:
        return bringup("check", "--checkpoint", folder, *more, "--format", format).stdout

    (found,) = [each for each in json.loads(shown("json"))["findings"] if each["code"] == code]
    assert (found["file"], found["line"]) == (str(file), line)
    results = json.loads(shown("sarif"))["runs"][0]["results"]
    ((place,),) = [each["locations"] for each in results if each["ruleId"] == code]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == name
    assert place["physicalLocation"]["region"]["startLine"] == line
    assert f"::error title={code}" in shown("github")
    assert f"file={name},line={line}::" in shown("github")
    assert f"{file}:{line}: error[{code}]" in shown("concise")
    assert f"--> {file}:{line}\n" in shown("full")


def test_an_absent_key(bringup: Bringup, tmp_path: Path) -> None:
    folder = written(tmp_path / "llama", {})
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    found = json.loads(bringup("check", "--checkpoint", folder, "--format", "json").stdout)["findings"][0]
    assert (found["code"], found["file"], found["line"]) == ("BU121", str(folder / "config.json"), None)
