"""Safetensors files: what the library writes, and headers that lie."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from bringup.adapters.checkpoints.arrays import mapped, numpy_dtype
from bringup.adapters.checkpoints.safetensors import TYPES, read_header
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from tests.adapters.written import as_bytes, entry, raises, write

TORCH = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
TORCH += [torch.float8_e8m0fnu, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32]
TORCH += [torch.uint16, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_what_safetensors_writes_from_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    bits = torch.randint(0, 2, (3, 5, 8), dtype=torch.uint8)  # 0 and 1 are valid bits of every dtype
    tensor = bits.view(dtype)
    safetensors.torch.save_file({"odd": bits[0, 0, :3].clone(), "x": tensor}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(str(tmp_path / "m.safetensors"))
    info = checkpoint.headers["x"]
    array = checkpoint.read(info)
    assert info.dtype == str(dtype).removeprefix("torch.")
    assert array.dtype == numpy_dtype(info.dtype)
    assert array.shape == info.shape == tuple(tensor.shape)
    assert as_bytes(array) == bits.numpy().tobytes()


def test_four_bit_floats_come_a_byte_each(tmp_path: Path) -> None:
    packed = torch.tensor([[0x21, 0x43], [0xF9, 0x07]], dtype=torch.uint8)
    file = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"x": packed.view(torch.float4_e2m1fn_x2)}, file)
    info = read_header(file)["x"]
    assert (info.dtype, info.shape, info.nbytes) == ("float4_e2m1fn", (2, 4), 4)
    want = [[0.5, 1, 1.5, 2], [-0.5, -6, 6, 0]]  # codes 1 2 3 4 · 9 F 7 0 of OCP MX 1.0, table 4
    assert mapped(file, info).astype(np.float32).tolist() == want


def test_a_view_is_private_writable_and_fresh(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    values = {"a": np.arange(7, dtype=np.float32), "b": np.arange(9, dtype=np.float32)}
    safetensors.numpy.save_file(values, file)
    before = file.read_bytes()
    checkpoint = open_checkpoint(str(file))
    first = checkpoint.read(checkpoint.headers["a"])
    first[:] = -1
    second = checkpoint.read(checkpoint.headers["a"])
    other = checkpoint.read(checkpoint.headers["b"])
    second[0] = 5
    assert second[1:].tolist() == values["a"][1:].tolist()
    assert set(first.tolist()) == {-1}
    assert other.tolist() == values["b"].tolist()
    assert file.read_bytes() == before


def test_a_tensor_on_an_odd_byte(tmp_path: Path) -> None:
    values = np.arange(5, dtype=np.float32)
    header = {"pad": entry("U8", [1], [0, 1]), "x": entry("F32", [5], [1, 21])}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = write(tmp_path / "m.safetensors", text, b"\0" + values.tobytes())
    array = mapped(file, read_header(file)["x"])
    assert array.tolist() == values.tolist()
    assert not array.flags.aligned
    array[0] = 3


def test_empty_tensors_scalars_and_empty_files(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    values = {"none": np.zeros((0, 3), np.float16), "one": np.array(2.5, np.float32)}
    safetensors.numpy.save_file(values, file)
    headers = read_header(file)
    assert mapped(file, headers["none"]).shape == (0, 3)
    assert mapped(file, headers["one"])[()] == np.float32(2.5)
    safetensors.numpy.save_file({}, file)
    assert read_header(file) == {}


def test_a_file_that_shrank(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(100, np.float32)}, file)
    info = read_header(file)["a"]
    file.write_bytes(file.read_bytes()[:100])
    with raises("BU207"):
        mapped(file, info)


OK = entry()
HOSTILE: dict[str, tuple[str, object, bytes]] = {
    "not json": ("BU211", b"{]", b""),
    "not an object": ("BU211", [], b""),
    "not utf-8": ("BU211", b'{"\xff": 1}', b""),
    "deep": ("BU211", b"[" * 100_000, b""),
    "a key twice": ("BU211", b'{"a": %s, "a": %s}' % ((json.dumps(OK).encode(),) * 2), b"\0" * 8),
    "metadata of numbers": ("BU211", {"__metadata__": {"format": 1}, "a": OK}, b"\0" * 8),
    "bytes after the last tensor": ("BU211", {"a": OK}, b"\0" * 9),
    "entry is a number": ("BU212", {"a": 7}, b""),
    "no shape": ("BU212", {"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"\0" * 8),
    "three offsets": ("BU212", {"a": entry(offsets=[0, 4, 8])}, b"\0" * 8),
    "unknown dtype": ("BU212", {"a": entry("F31")}, b"\0" * 8),
    "dtype is a list": ("BU212", {"a": entry(["F32"])}, b"\0" * 8),
    "negative size": ("BU212", {"a": entry(shape=[-2])}, b"\0" * 8),
    "fractional size": ("BU212", {"a": entry(shape=[2.0])}, b"\0" * 8),
    "shape and span differ": ("BU212", {"a": entry(shape=[3])}, b"\0" * 8),
    "enormous shape": ("BU212", {"a": entry(shape=[2**62, 2**62])}, b"\0" * 8),
    "end before begin": ("BU212", {"a": entry(offsets=[8, 0])}, b"\0" * 8),
    "overlap": ("BU212", {"a": OK, "b": entry(offsets=[4, 12])}, b"\0" * 12),
    "hole": ("BU212", {"a": OK, "b": entry(offsets=[12, 20])}, b"\0" * 20),
    "does not begin at 0": ("BU212", {"a": entry(offsets=[4, 12])}, b"\0" * 12),
    "truncated": ("BU208", {"a": entry(shape=[100], offsets=[0, 400])}, b"\0" * 8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(tmp_path: Path, name: str) -> None:
    code, header, data = HOSTILE[name]
    file = write(tmp_path / "m.safetensors", header, data)
    with raises(code, re.escape(str(file))):
        read_header(file)
    if name != "a key twice":  # serde keeps the last
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(file, "np").__enter__()  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("BU211", b""),
        ("BU211", b"\0" * 5),
        ("BU211", struct.pack("<Q", 0) + b"{}"),
        ("BU211", struct.pack("<Q", 2**63) + b"{}"),
        ("BU208", struct.pack("<Q", 400) + b"{}"),
        ("BU206", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n"),
    ],
)
def test_hostile_lengths(tmp_path: Path, code: str, content: bytes) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(content)
    with raises(code):
        read_header(file)
    with raises(code):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "code", "help"),
    [
        ("model.safetensors", b"<!DOCTYPE html><html>404</html>", "BU211", "the server sent a message"),
        ("model.safetensors", b"PK\x03\x04" + b"\0" * 20, "BU211", "such as pytorch_model.bin"),
        ("pytorch_model.bin", struct.pack("<Q", 2) + b"{}", "BU203", "a name that ends in .safetensors"),
    ],
)
def test_a_file_with_the_name_of_another_format(
    tmp_path: Path, name: str, content: bytes, code: str, help: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with raises(code) as caught:
        open_checkpoint(str(tmp_path))
    assert help in caught.value.findings[0].help


def test_lfs_pointer_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5481\n")
    with raises("BU206", r"5481 bytes.*lfs pull"):
        open_checkpoint(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("C64", 32), ("F6_E2M3", 3), ("F6_E3M2", 3), ("F8_E4M3FNUZ", 4), ("F8_E5M2FNUZ", 4)]
)
def test_dtypes_of_the_format_that_bringup_does_not_read(tmp_path: Path, dtype: str, nbytes: int) -> None:
    """safetensors reads them: the file is not damaged, and the name is no typing error."""
    file = write(tmp_path / "m.safetensors", {"a": entry(dtype, [4], [0, nbytes])}, b"\0" * nbytes)
    with safetensors.safe_open(file, "np") as opened:
        assert opened.get_slice("a").get_dtype() == dtype
    with pytest.raises(BringupError) as caught:
        read_header(file)
    (finding,) = caught.value.findings
    assert (finding.code, finding.sources) == ("BU212", ("a",))
    assert finding.message.endswith(f"has dtype '{dtype}', which bringup does not read")
    assert finding.help.startswith("save it in a dtype that bringup reads: F64, F32,")


def test_every_safetensors_dtype_has_an_array() -> None:
    assert all(numpy_dtype(dtype.name) for dtype in TYPES.values())
