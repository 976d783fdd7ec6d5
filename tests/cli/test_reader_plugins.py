"""A package of its own that reads a format: no part of bringup knows it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_plugins import package, run

POINTS = "[bringup.readers]\nrows = rows:RowsReader\n"
# A format for this test: the word ROWS, then for each tensor a line `name dtype d0,d1` and its bytes.
ROWS = '''
"""Reads `.rows` files."""
from bringup.adapters import Contents, TensorInfo


class RowsReader:
    name = "rows"

    def detects(self, path, head):
        return head.startswith(b"ROWS") if head else (path / "model.rows").is_file()

    def open(self, path):
        file = path / "model.rows" if path.is_dir() else path
        headers, data, at = {}, file.read_bytes(), 5
        while at < len(data):
            end = data.index(b"\\n", at)
            name, dtype, sizes = data[at:end].decode().split(" ")
            shape = tuple(int(size) for size in sizes.split(",") if size)
            nbytes = 4
            for size in shape:
                nbytes *= size
            headers[name] = TensorInfo(name, dtype, shape, file, end + 1, nbytes)
            at = end + 1 + nbytes
        return Contents(headers=headers)
'''


@pytest.fixture
def rows(small: Path, tmp_path: Path) -> Path:
    """A folder with GPT-2 in that format."""
    from safetensors.numpy import load_file

    folder = tmp_path / "in rows"
    folder.mkdir()
    (folder / "config.json").write_bytes((small / "config.json").read_bytes())
    with (folder / "model.rows").open("wb") as file:
        file.write(b"ROWS\n")
        for name, array in load_file(small / "model.safetensors").items():
            file.write(f"{name} {array.dtype} {','.join(map(str, array.shape))}\n".encode())
            file.write(np.ascontiguousarray(array).tobytes())
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    package(folder, "rows", POINTS, ROWS)
    return folder


def test_a_check_and_its_values(site: Path, rows: Path) -> None:
    for source in (rows, rows / "model.rows", f"rows:{rows}"):
        done = run(site, "check", "gpt2", "--checkpoint", source, "--values")
        assert done.exit_code == 0, done.output
    assert json.loads(run(site, "inspect", rows, "--format", "json").stdout)["format"] == "rows"


def test_without_the_package(site: Path, rows: Path) -> None:
    (site / "rows-1.dist-info" / "entry_points.txt").write_text("")
    done = run(site, "check", "gpt2", "--checkpoint", rows)
    assert "error[BU201]" in done.stdout


def test_a_broken_reader_is_a_warning(site: Path, rows: Path, small: Path) -> None:
    """It may be the one that is missing; it hides neither another nor bringup's own."""
    package(site, "bad", "[bringup.readers]\nbad = bad:Reader\n", "raise ValueError('not today')\n")
    for source in (rows, small):
        done = run(site, "check", "gpt2", "--checkpoint", source)
        assert (done.exit_code, "BU026" in done.output) == (0, False), done.output
    (rows / "model.rows").rename(rows / "model.columns")
    done = run(site, "check", "gpt2", "--checkpoint", rows)
    assert "error[BU201]" in done.stdout
    assert "warning[BU026]: plugin `bad`" in done.stdout
    assert "ValueError: not today" in done.stdout
