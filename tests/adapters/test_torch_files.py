"""torch's files, written by torch and read without it: every bit equal, no tensor read before it is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.torch_files import torch_file
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError

BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
CUBE = torch.arange(24.0).reshape(2, 3, 4)
KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
KINDS += [torch.uint8, torch.bool]
UNTYPED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]
LAYOUTS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def state() -> dict[str, torch.Tensor]:
    found = {str(kind).removeprefix("torch."): torch.arange(6).reshape(2, 3).to(kind) for kind in KINDS}
    views = {"base": BASE, "transposed": BASE.t(), "rows": BASE[1:3], "columns": BASE[:, 2:5], "step": BASE[::2, ::3]}
    expanded = torch.arange(3.0).expand(4, 3)
    more = {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.ones(3))}
    return {
        **found,
        **views,
        **more,
        "expanded": expanded,
        "permuted": CUBE.permute(2, 0, 1),
    }


def assert_equal(opened: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert list(opened.headers) == list(expected)
    for name, tensor in expected.items():
        info = opened.headers[name]
        assert (info.dtype, info.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for read in (opened.read, opened.load):
            assert read is not None
            array = read(info)
            bits = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            assert np.array_equal(np.ascontiguousarray(array).reshape(-1).view(np.uint8), bits), name
            assert array.flags.writeable


@LAYOUTS
def test_every_dtype_and_view(tmp_path: Path, zipped: bool) -> None:
    expected = state() | ({str(kind)[6:]: torch.arange(4).to(kind) for kind in UNTYPED} if zipped else {})
    torch.save(expected, tmp_path / "model.bin", _use_new_zipfile_serialization=zipped)
    opened = open_checkpoint(tmp_path / "model.bin")
    assert opened.format == "torch"
    assert_equal(opened, expected)
    assert [name for name, info in opened.headers.items() if not info.plain] == [
        "transposed", "columns", "step", "expanded", "permuted",
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@LAYOUTS
def test_protocols(tmp_path: Path, zipped: bool, protocol: int) -> None:
    file = tmp_path / "model.pt"
    torch.save(state(), file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_equal(open_checkpoint(file), state())


def test_a_module_s_state_dict(tmp_path: Path) -> None:
    """It has `_metadata` as an attribute of its own; parameters have state where somebody set attributes."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    marked = torch.nn.Parameter(torch.ones(2))
    marked.note = "x"
    torch.save(module.state_dict(keep_vars=True) | {"marked": marked}, tmp_path / "model.pth")
    assert_equal(open_checkpoint(tmp_path / "model.pth"), module.state_dict() | {"marked": marked})


def test_views_of_one_storage_are_memory_of_their_own(tmp_path: Path) -> None:
    torch.save({"base": BASE, "rows": BASE[1:3]}, tmp_path / "model.bin")
    opened = open_checkpoint(tmp_path / "model.bin")
    base, rows = (opened.read(opened.headers[name]) for name in ("base", "rows"))
    base[...] = 0
    assert np.array_equal(rows, BASE[1:3].numpy())


def test_big_endian(tmp_path: Path) -> None:
    """As torch writes it on s390x: the elements' bytes reversed, and `byteorder` says so."""
    import zipfile

    torch.save({"a": BASE, "t": BASE.t()}, tmp_path / "model.bin")
    swapped = BASE.numpy().astype(">f4").tobytes()
    with zipfile.ZipFile(tmp_path / "model.bin") as old, zipfile.ZipFile(tmp_path / "big.bin", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            data = b"big" if name.endswith("byteorder") else swapped if name.endswith("/data/0") else data
            new.writestr(name, data)
    assert_equal(open_checkpoint(tmp_path / "big.bin"), {"a": BASE, "t": BASE.t()})


def test_a_legacy_file_of_a_big_endian_machine(tmp_path: Path) -> None:
    """torch writes counts and elements little-endian there too; only what it says of the machine differs."""
    torch.save({"a": BASE}, tmp_path / "model.bin", _use_new_zipfile_serialization=False)
    data = (tmp_path / "model.bin").read_bytes()
    at = data.index(b"\x88", data.index(b"little_endian"))
    (tmp_path / "model.bin").write_bytes(data[:at] + b"\x89" + data[at + 1 :])
    assert_equal(open_checkpoint(tmp_path / "model.bin"), {"a": BASE})


def test_a_model_next_to_a_tensor_of_the_training_run(tmp_path: Path) -> None:
    torch.save({"model": {"a": BASE, "b": BASE}, "rng_state": torch.zeros(3)}, tmp_path / "model.pt")
    opened = open_checkpoint(tmp_path / "model.pt")
    assert list(opened.headers) == ["a", "b"]
    assert "also holds `rng_state`" in opened.findings[0].message
    torch.save({"a": BASE, "b": BASE, "metadata": {"c": BASE}}, tmp_path / "flat.pt")
    assert list(open_checkpoint(tmp_path / "flat.pt").headers) == ["a", "b"]


@pytest.mark.parametrize("word", ["state_dict", "model", "module"])
def test_the_dict_of_tensors_in_a_dict(tmp_path: Path, word: str) -> None:
    torch.save({"epoch": 3, word: {"a": BASE}, "args": {"lr": 0.1}}, tmp_path / "model.pt")
    opened = open_checkpoint(tmp_path / "model.pt")
    assert list(opened.headers) == ["a"]
    (note,) = opened.findings
    assert (note.code, note.severity) == ("BU220", "note")
    assert "`epoch`, `args`" in note.message


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ({"model": {"a": BASE}, "ema": {"a": BASE}}, "BU203", "several dicts of tensors: `model`, `ema`"),
        ([BASE], "BU203", "no dict of tensors"),
        ({"a": BASE.to_sparse()}, "BU204", "torch._utils._rebuild_sparse_tensor"),
        ({"a": torch.complex(BASE, BASE)}, "BU203", "torch.ComplexFloatStorage"),
        ({"a": BASE.to(torch.float8_e4m3fnuz)}, "BU203", "the dtype `torch.float8_e4m3fnuz`"),
        ({"a": torch.complex(BASE, BASE).conj().imag}, "BU203", "a conjugate or negative view"),
        ({"a": torch.nn.Linear(2, 2)}, "BU204", "torch.nn.modules.linear.Linear"),
        ({"a": torch.empty(2, device="meta")}, "BU204", "_rebuild_meta_tensor_no_storage"),
        ({"a": BASE, "path": Path("x")}, "BU204", "pathlib"),
    ],
    ids=range(9),
)
def test_what_is_no_plain_state_dict(tmp_path: Path, value: object, code: str, said: str) -> None:
    torch.save(value, tmp_path / "model.pt")
    with pytest.raises(BringupError) as caught:
        open_checkpoint(tmp_path / "model.pt")
    (finding,) = caught.value.findings
    assert (finding.code, said in finding.message) == (code, True), finding.message


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")
def test_torchscript(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)).save(str(tmp_path / "model.pt"))
    with pytest.raises(BringupError, match="TorchScript"):
        open_checkpoint(tmp_path / "model.pt")


def sharded(folder: Path, *, indexed: bool = True) -> dict[str, torch.Tensor]:
    parts = [{"a": BASE}, {"b": BASE.t()}]
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, folder / name)
    if indexed:
        index = {"weight_map": {"a": names[0], "b": names[1]}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return parts[0] | parts[1]


@pytest.mark.parametrize("indexed", [True, False])
def test_sharded(tmp_path: Path, indexed: bool) -> None:
    expected = sharded(tmp_path, indexed=indexed)
    for junk in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        torch.save(torch.nn.Linear(1, 1), tmp_path / junk)
    assert_equal(open_checkpoint(tmp_path), expected)
    if indexed:
        assert_equal(open_checkpoint(tmp_path / "pytorch_model.bin.index.json"), expected)
        (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
        with pytest.raises(BringupError, match="BU215"):
            open_checkpoint(tmp_path)


def test_safetensors_win(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"c": BASE}, tmp_path / "model.safetensors")
    opened = open_checkpoint(tmp_path)
    assert (opened.format, list(opened.headers)) == ("safetensors", ["c"])
    assert [(finding.code, finding.severity) for finding in opened.findings] == [("BU213", "note")]


def test_the_content_decides(tmp_path: Path) -> None:
    """Not the suffix."""
    torch.save({"a": BASE}, tmp_path / "weights.safetensors")
    save_file({"a": BASE}, tmp_path / "weights.bin")
    np.savez(tmp_path / "arrays", a=BASE.numpy())
    (tmp_path / "arrays.npz").rename(tmp_path / "arrays.pt")
    for name, format in (("weights.safetensors", "torch"), ("weights.bin", "safetensors"), ("arrays.pt", "numpy")):
        opened = open_checkpoint(tmp_path / name)
        assert opened.format == format
        assert_equal(opened, {"a": BASE})


def test_headers_take_neither_torch_nor_numpy_nor_the_tensors(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(64 << 20, dtype=torch.uint8), "b": BASE}, tmp_path / "model.bin")
    code = (
        "import sys; from pathlib import Path\n"
        "from bringup.adapters.sources.open_checkpoint import open_checkpoint as o;"
        f"assert o({str(tmp_path / 'model.bin')!r}).headers;"
        "assert not {'numpy','torch','ml_dtypes'} & set(sys.modules);"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60 << 10  # KiB; Python and bringup take 25 MiB


def test_the_names_that_are_allowed() -> None:
    """Each is torch's own, and none is a function that does more than build a value."""
    import importlib

    for name in torch_file.NAMES:
        module, _, attribute = name.rpartition(".")
        if name not in ("torch.storage._UntypedStorage", "torch._utils._rebuild_tensor_v3"):
            assert hasattr(importlib.import_module(module), attribute), name
    roots = {name.partition(".")[0] for name in torch_file.NAMES}
    assert roots == {"torch", "collections"}
