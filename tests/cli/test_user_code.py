"""Mistakes in files that the user gives: told with their own line, never as a bug in bringup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Bringup

ROOT = Path(__file__).parents[2]
ADAPTER = (ROOT / "adapters/gpt2.py").read_text("utf-8")
MODEL = """from bringup.graphs.gpt2 import GPT2, GPT2Config
from bringup.adapters.gpt2 import adapter as published
from bringup.graphs.family import Family
{top}

class Graph(GPT2):
    def __init__(self, config, dtype="float32"):
        {init}
        super().__init__(config, dtype)


class Config(GPT2Config):
    @classmethod
    def from_fields(cls, fields):
        {config}
        return GPT2Config.from_fields(fields)


def adapter(config):
    built = published(config)
    {adapter}
    return built


family = Family(name="mine", graph=Graph, config=Config, adapter=adapter)
"""
ODD_PLACES = {
    "top": "NameError: name 'undefined' is not defined",
    "init": "NameError: name 'undefined' is not defined",
    "config": "NameError: name 'undefined' is not defined",
    "adapter": "NameError: name 'undefined' is not defined",
}


def test_the_line_of_a_file_that_fails_is_no_rule(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    file.write_text("import nothing_here\n", "utf-8")
    result = bringup("check", file, "--checkpoint", small)
    assert "1 | import nothing_here\n  | ^^^^^^^^^^^^^^^^^^^ the line\n" in result.output
    sarif = bringup("check", file, "--checkpoint", small, "--format", "sarif").stdout
    assert "the rule" not in sarif


def finding_of(result) -> dict:
    (finding,) = json.loads(result.stdout)["findings"]
    return finding


@pytest.mark.parametrize("place", ODD_PLACES)
def test_a_model_that_raises_in_odd_places(bringup: Bringup, small: Path, tmp_path: Path, place: str) -> None:
    file = tmp_path / "my_model.py"
    text = MODEL.format(**dict.fromkeys(ODD_PLACES, "") | {place: "undefined"})
    file.write_text(text, "utf-8")
    result = bringup("check", file, "--checkpoint", small, "--format", "json")
    finding = finding_of(result)
    assert result.exit_code == 2
    assert finding["code"] == "BU026"
    assert finding["message"] == f"`my_model.py` fails when it is run: {ODD_PLACES[place]}"
    line = 1 + text[: text.index("undefined")].count("\n")
    assert finding["rule"] == {"file": str(file), "line": line}


def test_the_model_itself_is_in_order(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(MODEL.format(**dict.fromkeys(ODD_PLACES, "")), "utf-8")
    assert bringup("check", file, "--checkpoint", small).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return gpt2", "return gpt2 +", "SyntaxError: invalid syntax"),
        ("return gpt2", "return gpt2)", "SyntaxError: unmatched ')'"),
        ("    return gpt2", "  return gpt2", "IndentationError: unindent does not match any outer indentation level"),
        (
            "from bringup.adapters.algebra.expr import S",
            "import torchh",
            "ModuleNotFoundError: No module named 'torchh'",
        ),
        ("import S\n", "import SS\n", "ImportError: cannot import name 'SS'"),
        ("return gpt2", "raise SystemError('mine')", "SystemError: mine"),
        ("return gpt2", "open('/nowhere/at/all')", "FileNotFoundError: [Errno 2]"),
        ("return gpt2", "return adapter(config)", "RecursionError: maximum recursion depth exceeded"),
        ('S("{n}.{p}")', 'S("{n}.{p}").mv("a b")', "AxesError: mv expects `before -> after`"),
        ('S("{n}.{p}")', "S()", "TypeError: S() missing 1 required positional argument"),
    ],
)
def test_an_adapter_file(bringup: Bringup, small: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in ADAPTER
    file = tmp_path / "mine.py"
    file.write_text(ADAPTER.replace(old, new), "utf-8")
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--format", "json")
    finding = finding_of(result)
    assert (result.exit_code, finding["code"]) == (2, "BU026")
    assert said in finding["message"]
    assert finding["rule"]["file"] == str(file)
    if "Recursion" not in said:  # it ends wherever the stack does
        assert new.strip() in file.read_text("utf-8").splitlines()[finding["rule"]["line"] - 1]
    assert "Traceback" not in bringup("check", "--checkpoint", small, "--adapter", file).output
    assert "Traceback" in bringup("check", "--checkpoint", small, "--adapter", file, "-v").stderr


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01", b"x = 1\0", b"x = '\xff'", b"# coding: klingon\n"])
@pytest.mark.parametrize("given", ["--adapter", "MODEL"])
def test_a_file_that_is_no_text(bringup: Bringup, small: Path, tmp_path: Path, data: bytes, given: str) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(data)
    words = [file] if given == "MODEL" else ["--adapter", file]
    result = bringup("check", *words, "--checkpoint", small, "--format", "json")
    assert (result.exit_code, finding_of(result)["code"]) == (2, "BU026")
    assert finding_of(result)["rule"]["file"] == str(file)


def test_a_package_that_is_not_installed_is_reported_as_such(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise ModuleNotFoundError('no', name='torch')")
    result = bringup("check", "--checkpoint", small, "--adapter", file, "--format", "json")
    assert (result.exit_code, finding_of(result)["code"]) == (3, "BU922")


def test_a_plugin(tmp_path: Path, small: Path) -> None:
    """A package that offers a family, and raises when bringup asks for it."""
    (tmp_path / "odd_plugin.py").write_text("def family():\n    pass\n\nraise ValueError('not today')\n")
    info = tmp_path / "odd_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[bringup.models]\nodd = odd_plugin:family\n")
    command = [sys.executable, "-m", "bringup", "check", "odd", "--checkpoint", str(small)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2
    said = "error[BU026]: plugin `odd` (`odd_plugin:family`) cannot be loaded: ValueError: not today"
    assert said in done.stdout + done.stderr
    assert f"{tmp_path / 'odd_plugin.py'}:4" in done.stdout + done.stderr
