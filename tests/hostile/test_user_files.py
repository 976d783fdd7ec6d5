"""Files that the user gives are programs: whatever they do, it is told once, with their own line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.watch import called, watched

# What stands in the file → the code, and the line that is pointed at.
FILES = {
    "nothing": ("BU004", 0, ""),
    "no function": ("BU004", 0, "adapter = 7\n"),
    "a syntax error": ("BU026", 2, "def adapter(config):\n    return (\n"),
    "a NUL": ("BU026", 1, "x = 1\0\n"),
    "raises at once": ("BU026", 2, "x = 1\nraise ValueError('no')\n"),
    "raises when called": ("BU026", 2, "def adapter(config):\n    return config.nothing_of_that_name\n"),
    "no arguments": ("BU004", 0, "def adapter():\n    return None\n"),
    "gives nothing": ("BU004", 0, "def adapter(config):\n    return None\n"),
    "endless recursion": ("BU026", 2, "def adapter(config):\n    return adapter(config)\n"),
    "not utf-8": ("BU026", 1, "x = '\udcff'\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_one_error(tmp_path: Path, name: str) -> None:
    code, line, text = FILES[name]
    file = tmp_path / "mine.py"
    file.write_text(text, "utf-8", errors="surrogateescape")
    seen = called("check", "gpt2", "--checkpoint", "dummy", "--adapter", file)
    (finding,) = seen.findings
    assert seen.code in (1, 2)
    assert finding["code"] == code
    if line:
        assert (finding["rule"]["file"], finding["rule"]["line"]) == (str(file), line)


@pytest.mark.parametrize("text", ["import sys\ndef adapter(config):\n    sys.exit(0)\n", "\n\nraise SystemExit\n"])
def test_a_file_that_leaves(tmp_path: Path, text: str) -> None:
    """It must not look like a check that ended well."""
    file = tmp_path / "mine.py"
    file.write_text(text, "utf-8")
    seen = watched("check", "gpt2", "--checkpoint", "dummy", "--adapter", file)
    assert seen.code == 2
    assert seen.err.count("error[BU026]") == 1
    assert f"{file}:3" in seen.err
