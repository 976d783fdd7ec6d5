"""Hostile safetensors files. The `safetensors` library is the oracle of what is no such file."""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path

import pytest
import safetensors

from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from tests.hostile.headers import BOMBS, SMALL, framed, many
from tests.hostile.watch import assert_one_error, check, watched

# Refused here though the library takes them: serde keeps the last of two names, and skips what it has no use for.
STRICTER = {"a name twice", "a float beyond floats"}
WATCHED = ["random bytes", "length 2^60", "deep lists", "not utf-8", "a number of a million digits", "100,000 axes"]


def put(folder: Path, data: bytes) -> Path:
    file = folder / "model.safetensors"
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("name", SMALL)
def test_one_error(tmp_path: Path, name: str) -> None:
    code, data = SMALL[name]
    file = put(tmp_path, data)
    for source in (str(file), str(tmp_path)):
        with pytest.raises(BringupError) as caught:
            open_checkpoint(source)
        (finding,) = caught.value.findings
        assert finding.code == code
        assert str(file) in finding.message
        assert len(finding.message) < 1000
        assert caught.value.exit_code == 1
    if name not in STRICTER:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(file, "np").__enter__()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", [*WATCHED, *BOMBS])
def test_in_time_and_memory(tmp_path: Path, name: str) -> None:
    code, data = (SMALL | BOMBS)[name]
    put(tmp_path, data() if callable(data) else data)
    assert_one_error(check("--checkpoint", tmp_path), code)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_as_large_as_a_disk(tmp_path: Path) -> None:
    """A sparse file of 2^40 bytes: only its header is read."""
    file = put(tmp_path, framed({}))
    with file.open("r+b") as handle:
        handle.truncate(1 << 40)
    assert_one_error(check("--checkpoint", file), "BU211")


NAMES = [
    "",
    "a\0b",
    "a\nb",
    "\x1b[2J\x1b[31mred",
    "../../etc/passwd",
    "\u202eabc",
    "a" * 100_000,
    "\x9b31m",
    "__metadata",
]


def test_odd_names_are_names(tmp_path: Path) -> None:
    """Tensors may be called anything; what is said of them leaves a terminal as it was."""
    header = {name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for name in NAMES}
    put(tmp_path, framed(header))
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    assert set(open_checkpoint(str(tmp_path)).headers) == set(NAMES)
    for style in ("full", "concise"):
        seen = watched("check", "--checkpoint", tmp_path, "--format", style)
        assert seen.code == 1
        assert "Traceback" not in seen.err
        assert not set(seen.out + seen.err) & set("\0\x1b\x9b\u202e\r")


@pytest.mark.slow
def test_as_many_tensors_as_the_largest_model(tmp_path: Path) -> None:
    """DeepSeek-V3 has 91,991 tensors: a file that holds them all is read."""
    assert len(read_header(put(tmp_path, many(91_991)))) == 91_991


def test_the_collector_is_left_as_it_was(tmp_path: Path) -> None:
    for data in (framed({}), framed(b"{]")):
        file = put(tmp_path, data)
        for on in (True, False):
            (gc.enable if on else gc.disable)()
            with contextlib.suppress(BringupError):
                read_header(file)
            assert gc.isenabled() == on
    gc.enable()


GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 100,
    "n_positions": 64,
}
