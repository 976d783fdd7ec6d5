"""GGUF files that are wrong in one place: each is one coded error, soon and in little memory."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from bringup.adapters.checkpoints.gguf_tensors import read_gguf
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.adapters.gguf_files import file_of, hyperparameters, pair, tensor, text, write
from tests.adapters.written import raises


def zeros(kind: int, count: int, nbytes: int) -> bytes:
    """A key whose value is an array of `count` zeros, or of empty strings."""
    return pair("x", 9, struct.pack("<IQ", kind, count) + bytes(count * nbytes))


HOSTILE: dict[str, tuple[str, bytes]] = {
    "version 1": ("BU223", file_of(version=1)),
    "big endian": ("BU223", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
    "split": ("BU223", file_of(keys=(pair("split.count", 2, struct.pack("<H", 4)),))),
    "type not read": ("BU223", file_of(tensor("a", (256,), kind=15))),
    "header cut": ("BU208", file_of()[:20]),
    "too many tensors": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0)),
    "too many keys": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60)),
    "long key": ("BU208", file_of(keys=(struct.pack("<Q", 2**62),))),
    "long string": ("BU208", file_of(keys=(pair("x", 8, struct.pack("<Q", 2**63)),))),
    "long array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQ", 4, 2**62)),))),
    "long string array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQ", 8, 2**62)),))),
    "long string in an array": ("BU208", file_of(keys=(pair("x", 9, struct.pack("<IQQ", 8, 2, 2**63)),))),
    "nested array": ("BU221", file_of(keys=(pair("x", 9, struct.pack("<IQ", 9, 1)),))),
    "no such value type": ("BU221", file_of(keys=(pair("x", 13, b""),))),
    "a key twice": ("BU221", file_of(keys=(pair("x", 0, b"1"),) * 2)),
    "key not utf-8": ("BU221", file_of(keys=(struct.pack("<Q", 1) + b"\xff",))),
    "alignment 0": ("BU221", file_of(keys=(pair("general.alignment", 4, struct.pack("<I", 0)),))),
    "alignment 24": ("BU221", file_of(keys=(pair("general.alignment", 4, struct.pack("<I", 24)),))),
    "a tensor twice": ("BU222", file_of(tensor("a"), tensor("a", offset=32))),
    "five dimensions": ("BU222", file_of(tensor("a", (1,) * 5))),
    "no such tensor type": ("BU222", file_of(tensor("a", kind=77))),
    "removed tensor type": ("BU222", file_of(tensor("a", kind=4))),
    "half a block": ("BU222", file_of(tensor("a", (48,), kind=8))),
    "odd offset": ("BU222", file_of(tensor("a", offset=4))),
    "overlap": ("BU222", file_of(tensor("a", (9,)), tensor("b", offset=32))),
    "data cut": ("BU208", file_of(tensor("a", (1000,)))),
    "enormous shape": ("BU208", file_of(tensor("a", (2**62, 2**62)))),
    "offset outside": ("BU208", file_of(tensor("a", offset=2**63))),
    "version 0": ("BU223", file_of(version=0)),
    "version 2^31": ("BU223", file_of(version=2**31 - 1)),
    "counts of 2^63": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63)),
    "counts of 2^64 - 1": ("BU208", b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 2**64 - 1)),
    "a million tensors": ("BU225", b"GGUF" + struct.pack("<IQQ", 3, 10**6, 0) + bytes(24 * 10**6)),
    "a million keys": ("BU225", b"GGUF" + struct.pack("<IQQ", 3, 0, 10**6) + bytes(13 * 10**6)),
    "three million numbers": (
        "BU225",
        file_of(keys=(zeros(0, 3 * 10**6, 1),)),
    ),
    "a long name": ("BU225", file_of(keys=(text("k" * 2000) + struct.pack("<IB", 0, 1),))),
    "a long tensor name": ("BU225", file_of(tensor("t" * 2000))),
    "empty string arrays": (
        "BU225",
        file_of(keys=(zeros(8, 3 * 10**6, 8),)),
    ),
    "array of arrays of arrays": ("BU221", file_of(keys=(pair("x", 9, struct.pack("<IQ", 9, 1) * 100),))),
    "array of a type that is none": ("BU221", file_of(keys=(pair("x", 9, struct.pack("<IQ", 99, 0)),))),
    "alignment 2^31": ("BU208", file_of(tensor("a"), keys=(pair("general.alignment", 4, struct.pack("<I", 2**31)),))),
    "alignment is text": ("BU221", file_of(keys=(pair("general.alignment", 8, text("32")),))),
    "alignment is true": ("BU221", file_of(keys=(pair("general.alignment", 7, b"\1"),))),
    "alignment is an array": ("BU221", file_of(keys=(pair("general.alignment", 9, struct.pack("<IQI", 4, 1, 32)),))),
    "alignment is negative": ("BU221", file_of(keys=(pair("general.alignment", 5, struct.pack("<i", -32)),))),
    "split is an array": ("BU221", file_of(keys=(pair("split.count", 9, struct.pack("<IQ", 4, 0)),))),
    "tensor name not utf-8": ("BU221", file_of(struct.pack("<Q", 2) + b"\xc3(" + tensor("")[8:])),
    "value not utf-8": ("BU221", file_of(keys=(pair("x", 8, struct.pack("<Q", 1) + b"\xff"),))),
    "dimensions overflow": ("BU208", file_of(tensor("a", (2**63, 2**63, 2**63, 2**63)))),
    "dimensions wrap to nothing": ("BU208", file_of(tensor("a", (2**32, 2**32)))),
    "2^32 dimensions": ("BU222", file_of(text("a") + struct.pack("<I", 2**32 - 1))),
    "type 2^32 - 1": ("BU222", file_of(tensor("a", kind=2**32 - 1))),
    "a block type without dimensions": ("BU222", file_of(tensor("a", (), kind=2))),
    "same place": ("BU222", file_of(tensor("a"), tensor("b"))),
    "inside another": ("BU222", file_of(tensor("a", (16,)), tensor("b", (1,), offset=32))),
    "offset at the very end": ("BU208", file_of(tensor("a", offset=64))),
    "offset 2^64 - 32": ("BU208", file_of(tensor("a", offset=2**64 - 32))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    code, content = HOSTILE[name]
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with raises(code, re.escape(str(file))):
        read_gguf(file)


def test_hostile_files_are_valid_but_for_their_fault(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(file_of(tensor("a"), tensor("b", offset=32), keys=(pair("x", 0, b"1"),)))
    assert [info.shape for info in read_gguf(file)[1].values()] == [(2,), (2,)]
    assert len(gguf.GGUFReader(file).tensors) == 2


def test_a_file_cut_at_every_byte(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        hyperparameters(writer)
        writer.add_array("x.texts", ["a", "b"])
        writer.add_array("x.numbers", [1, 2, 3])
        writer.add_tensor("a", np.zeros(64, np.float32))

    file = write(tmp_path / "m.gguf", fill)
    whole = file.read_bytes()
    read_gguf(file)
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with raises("BU221" if size < 4 else "BU208"):
            read_gguf(file)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + b"\0" * 50)
    with raises("BU221"):
        read_gguf(tmp_path / "m.gguf")
    (tmp_path / "n.gguf").write_bytes(b"")
    with raises("BU218", "m.gguf"):
        open_checkpoint(str(tmp_path))
