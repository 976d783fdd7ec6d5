"""`--also SRC:PREFIX` and `--no-mmap`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply.range_reader import RangeReader
from bringup.adapters.checkpoints.reader import Contents
from bringup.adapters.sources.file_readers import NUMPY_READER
from bringup.adapters.sources.open_checkpoint import _in_place, open_checkpoint
from bringup.cli.main import cli
from bringup.compile.bundle.bundle_job import job_of_bundle
from bringup.compile.report.byte_ranges import _slices
from bringup.diagnostics import BringupError


def check(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["check", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


def test_a_checkpoint_in_two_sources(small: Path, tmp_path: Path) -> None:
    """What a prefix puts in its place is read from there, whatever the second's format."""
    tensors = load_file(small / "model.safetensors")
    moved = {name: array for name, array in tensors.items() if name.startswith("h.1.")}
    assert moved
    save_file({name: array for name, array in tensors.items() if name not in moved}, small / "model.safetensors")
    assert check("gpt2", "--checkpoint", small)[0] == 1
    second = {name.removeprefix("h.1."): torch.from_numpy(array) for name, array in moved.items()}
    torch.save(second, tmp_path / "second.bin")
    word = f"{tmp_path / 'second.bin'}:h.1."
    assert check("gpt2", "--checkpoint", small, "--also", word, "--values")[0] == 0
    assert check("gpt2", "--checkpoint", small, "--also", word, "--values", "--no-mmap")[0] == 0
    opened = open_checkpoint(small, also=[word])
    for name, array in tensors.items():
        assert np.array_equal(opened.read(opened.headers[name]), array)


def test_every_source_is_noted_and_opened_again(small: Path, tmp_path: Path) -> None:
    tensors = load_file(small / "model.safetensors")
    words: list[str] = []
    for number in (0, 1):
        prefix = f"h.{number}."
        moved = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        assert moved
        save_file(moved, tmp_path / f"{number}.safetensors")
        words += ["--also", f"{tmp_path / f'{number}.safetensors'}:{prefix}"]
    save_file(tensors, small / "model.safetensors")
    lock = tmp_path / "plan.lock"
    run = CliRunner().invoke
    assert run(cli, ["lock", "gpt2", "--checkpoint", str(small), *words, "-o", str(lock)]).exit_code == 0
    done = run(cli, ["lock", "--check", str(lock)])
    assert done.exit_code == 0, done.output
    opened = open_checkpoint(small, also=words[1::2])
    assert [also["prefix"] for also in opened.provenance["also"]] == ["h.0.", "h.1."]
    manifest = {"model_argument": "gpt2", "config": dict(opened.config), "dtype": "float32", "graph_options": {}}
    job = job_of_bundle(manifest | {"provenance": dict(opened.provenance)}, None)
    assert job.checkpoint.headers.keys() == opened.headers.keys()


def test_no_mmap(small: Path) -> None:
    opened = open_checkpoint(small, mmap=False)
    info = next(iter(opened.headers.values()))
    owner = opened.read(info)
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    assert isinstance(owner, np.ndarray)  # and no mapping


@pytest.mark.parametrize("word", ["{small}", "{small}:", ":draft."])
def test_words_that_are_refused(small: Path, word: str) -> None:
    with pytest.raises(BringupError, match="BU043"):
        open_checkpoint(small, also=[word.format(small=small)])


@pytest.mark.parametrize("kind", ["deflated", "fortran", "big_endian"])
def test_ranges_of_a_second_source_of_another_layout(small: Path, tmp_path: Path, kind: str) -> None:
    """Its tensors are not their bytes in the file: each is read by its own reader."""
    array = np.arange(1.0, 65.0, dtype="float32").reshape(8, 8)
    written = {"fortran": np.asfortranarray(array), "big_endian": array.astype(">f4"), "deflated": array}[kind]
    (np.savez_compressed if kind == "deflated" else np.savez)(tmp_path / "second.npz", w=written)
    opened = open_checkpoint(small, also=[f"{tmp_path / 'second.npz'}:more."])
    reader = RangeReader(opened)
    reader.want({"more.w": [(0, 256)]})
    assert np.array_equal(reader(opened.headers["more.w"]), array)
    assert "[" not in _slices(opened.headers["more.w"], [(0, 256)])[0]


def test_ranges_of_a_plugin_that_reads_by_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(4, dtype="float32"))
    found = NUMPY_READER.open(tmp_path / "w.npy")

    class Doubling:
        name = "safetensors"

        def detects(self, path: Path, head: bytes) -> bool:
            return True

        def open(self, path: Path) -> Contents:
            return Contents(headers=found.headers, read=lambda info: found.read(info) * 2)

    info = next(iter(found.headers.values()))
    assert info.plain
    assert not _in_place(Doubling(), Doubling().open(tmp_path))(info)
    assert _in_place(NUMPY_READER, found)(info)
