"""Dtypes, aligned memory, checkpoints in memory, and dummies."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from bringup.adapters.apply.range_reader import RangeReader
from bringup.adapters.checkpoints.arrays import HUGE, READ, aligned, numpy_dtype, resident
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.sources.dummy import STD, dummy_checkpoint
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.spec import DTYPES, TensorInfo
from tests.adapters.written import raises


def test_dtypes() -> None:
    for name, dtype in DTYPES.items():
        if dtype.block:
            continue
        assert numpy_dtype(name).name == name
        assert numpy_dtype(name).itemsize == max(dtype.bits, 8) // 8
    assert numpy_dtype("bfloat16") == ml_dtypes.bfloat16


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (3_000_001,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4"])
def test_aligned(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned(shape, dtype)
    assert array.shape == shape
    assert array.dtype == numpy_dtype(dtype)
    assert array.ctypes.data % 64 == 0 or not array.size  # numpy gives no address of nothing
    assert array.flags.c_contiguous
    array[...] = 1
    assert (array == 1).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="huge pages are Linux's")
@pytest.mark.parametrize("size", [HUGE, HUGE + 4, 5_000_000, 4 * HUGE])
def test_large_arrays_have_pages_of_their_own(size: int) -> None:
    """Whole huge pages from the first byte on; and where memory is not to be had, numpy's MemoryError."""
    arrays = [aligned((size // 4,), "float32") for _ in range(3)]
    for array in arrays:
        assert (array.ctypes.data % HUGE, array.nbytes) == (0, size)
        array[...] = 2
        assert (array == 2).all()
    with pytest.raises(MemoryError):
        aligned((1 << 60,), "uint8")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="huge pages are Linux's")
def test_ranges_that_are_not_read_take_no_memory(tmp_path: Path) -> None:
    """Of a tensor of 128 MiB a page in each 2 MiB is read; a huge page for each would be all of it."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * mmap.PAGESIZE

    size = 64 * HUGE
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    reader = RangeReader(open_checkpoint(tmp_path / "model.safetensors"))
    reader.want({"w": [(start, start + mmap.PAGESIZE) for start in range(0, size, HUGE)]})
    before = resident()
    array = reader(reader.checkpoint.headers["w"])
    assert (array.nbytes, reader.nbytes) == (size, 64 * mmap.PAGESIZE)
    assert resident() - before < size // 4


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool], ids=str
)
def test_a_dict_of_torch_tensors(dtype: torch.dtype) -> None:
    tensor = torch.randn(4, 6).to(dtype).T
    checkpoint = dict_checkpoint({"x": tensor, "scalar": tensor[0, 0]}, {"model_type": "toy"})
    array = checkpoint.read(checkpoint.headers["x"])
    assert array.dtype.name == str(dtype).removeprefix("torch.")
    assert torch.equal(torch.from_numpy(array.astype(np.float32)), tensor.to(torch.float32))
    array[...] = 0
    assert tensor.to(torch.float32).any()
    assert checkpoint.read(checkpoint.headers["scalar"]).shape == ()


def test_a_dict_of_arrays() -> None:
    values = {
        "turned": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        "foreign": np.arange(3, dtype=">i4"),
        "narrow": np.arange(-3, 3).astype(ml_dtypes.int4),
        "brain": np.ones(2, ml_dtypes.bfloat16),
    }
    checkpoint = dict_checkpoint(values, {})
    for name, value in values.items():
        read = checkpoint.read(checkpoint.headers[name])
        assert read.dtype.isnative
        assert read.astype(np.float32).tolist() == value.astype(np.float32).tolist()
        assert not np.shares_memory(read, value)


class OnlyDlpack:
    """As MAX's WeightData: its dtype is an enumeration of MAX, and it is no array."""

    dtype = "DType.bfloat16"
    shape = ("Dim(4)", "Dim(6)")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **words: Any) -> Any:
        return self.tensor.__dlpack__(**words)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_dict_of_objects_with_only_the_dlpack_protocol(dtype: torch.dtype) -> None:
    tensor = torch.randn(6, 4).to(dtype).T
    checkpoint = dict_checkpoint({"x": OnlyDlpack(tensor)}, {})
    array = checkpoint.read(checkpoint.headers["x"])
    assert (array.dtype.name, array.shape) == (str(dtype).removeprefix("torch."), (4, 6))
    assert torch.equal(torch.from_numpy(array.astype(np.float32)), tensor.to(torch.float32))


def test_an_object_whose_values_dlpack_cannot_pass_on() -> None:
    with raises("BU241", "`x`"):
        dict_checkpoint({"x": OnlyDlpack(torch.empty(4, 6, device="meta"))}, {})


@pytest.mark.parametrize("value", [[1, 2], 3.0, np.array(["a"]), np.zeros(2, np.complex64), None], ids=repr)
def test_dict_values_that_are_no_weights(value: object) -> None:
    with raises("BU241", "`x`"):
        dict_checkpoint({"x": value}, {})


def test_a_meta_tensor_has_a_header_and_no_values() -> None:
    checkpoint = dict_checkpoint({"x": torch.empty(3, device="meta")}, {})
    with raises("BU241", "meta"):
        checkpoint.read(checkpoint.headers["x"])


def info(name: str, dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, dtype, shape, nbytes=DTYPES[dtype].nbytes(shape))


def test_dummy_values_depend_on_name_and_seed_only() -> None:
    headers = {h.name: h for h in (info("a", "float32", 400, 50), info("b", "float32", 400, 50))}
    one, two, other = (dummy_checkpoint(headers, {}, seed) for seed in (0, 0, 1))
    b = one.read(headers["b"])
    a = one.read(headers["a"])
    assert np.array_equal(two.read(headers["a"]), a)
    assert not np.array_equal(a, b)
    assert not np.array_equal(other.read(headers["a"]), a)
    assert one.is_dummy
    assert one.provenance["weights"] == "dummy"
    assert a.std() == pytest.approx(STD, rel=0.05)


WRITTEN = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "tq1_0", "tq2_0"]  # gguf-py quantises to these alone


@pytest.mark.parametrize("dtype", WRITTEN)
def test_a_dummy_in_blocks(dtype: str) -> None:
    header = info("x.weight", dtype, 2, 256)
    array = dummy_checkpoint({"x.weight": header}, {}).read(header)
    assert (array.dtype, array.shape) == (np.uint8, (header.nbytes,))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if DTYPES[name].block and name not in WRITTEN])
def test_a_dummy_in_blocks_that_cannot_be_created(dtype: str) -> None:
    header = info("x.weight", dtype, 2, 256)
    with raises("BU223", dtype):
        dummy_checkpoint({"x.weight": header}, {}).read(header)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if not DTYPES[name].block])
def test_a_dummy_of_every_dtype(dtype: str) -> None:
    header = info("x.weight", dtype, 64)
    array = dummy_checkpoint({"x.weight": header}, {}).read(header)
    assert (array.dtype, array.shape) == (numpy_dtype(dtype), (64,))
    assert np.isfinite(array.astype(np.float32)).all()
    if DTYPES[dtype].kind == "float" and dtype != "float8_e8m0fnu":
        assert array.astype(np.float32).mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("size", [1, 1000, READ // 4, READ // 4 + 1, 3 * READ // 4 + 5])
def test_resident_tensors_are_those_of_the_file(tmp_path: Path, size: int) -> None:
    """Read in parts of READ bytes, they equal what `safetensors` reads, and none overlaps another."""
    random = np.random.default_rng(size)
    stored = {"a": random.standard_normal((3, 5)).astype(np.float16), "b": random.standard_normal(size, np.float32),
              "c": random.integers(0, 256, 777, np.uint8), "d": np.zeros((0, 4), np.float32)}  # fmt: skip
    path = tmp_path / "x.safetensors"
    save_file(stored, path)
    arrays = resident(path, read_header(path))
    for name, array in sorted(load_file(path).items()):
        np.testing.assert_array_equal(arrays[name], array)  # what was written to the ones before changed nothing
        arrays[name][...] = 0


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones(READ, np.uint8), "b": np.ones(READ, np.uint8)}, path)
    header = read_header(path)
    with path.open("r+b") as file:
        file.truncate(READ + 1000)
    with raises("BU207", match="`b` ended at byte"):
        resident(path, header)
