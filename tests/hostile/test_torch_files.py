"""Hostile torch files: pickles that run code, that take memory or time, and archives that lie about their bytes."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from tests.hostile.watch import assert_one_error, check

END = b"."
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
HEADS = MAGIC + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)


def archive(path: Path, pickled: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        for key, data in storages.items():
            file.writestr(f"archive/data/{key}", data)
    return path


def legacy(path: Path, pickled: bytes) -> Path:
    path.write_bytes(HEADS + pickled + pickle.dumps([], 2))
    return path


def refusal(path: Path) -> tuple[str, str]:
    with pytest.raises(BringupError) as caught:
        open_checkpoint(path)
    (finding,) = caught.value.findings
    assert finding.help
    return finding.code, finding.message


MARKER = "bringup-marker"
# What writes the file MARKER when Python's pickle loads it, in the ways that pickles can call something.
ATTACKS = {
    "reduce": b"\x80\x02cos\nsystem\nX\x14\x00\x00\x00touch bringup-marker\x85R.",
    "builtins": b"\x80\x02cbuiltins\nexec\nX\x22\x00\x00\x00open('bringup-marker','w').close()\x85R.",
    "python 2": b"\x80\x02c__builtin__\neval\nX\x1b\x00\x00\x00open('bringup-marker','w')#  \x85R.",
    "open": b"\x80\x02cio\nopen\nX\x0e\x00\x00\x00bringup-markerX\x01\x00\x00\x00w\x86R.",
    "inst": b"(X\x14\x00\x00\x00touch bringup-markerios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\nX\x14\x00\x00\x00touch bringup-markero.",
    "newobj": b"\x80\x02csubprocess\nPopen\n]X\x05\x00\x00\x00toucha]X\x05\x00\x00\x00touch\x85\x81.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x14touch bringup-marker\x85R.",
    "in a dict": b"\x80\x02}X\x01\x00\x00\x00acos\nsystem\nX\x14\x00\x00\x00touch bringup-marker\x85Rs.",
    "allowed module": b"\x80\x02ctorch\nload\nX\x0e\x00\x00\x00bringup-marker\x85R.",
    "allowed, with dots": b"\x80\x04\x8c\x05torch\x8c\x0aos.systems\x93\x8c\x14touch bringup-marker\x85R.",
    "torch.hub": b"\x80\x02ctorch.utils.cpp_extension\nos.system\nX\x14\x00\x00\x00touch bringup-marker\x85R.",
    "build": b"\x80\x02ccollections\nOrderedDict\n)R}X\x08\x00\x00\x00__dict__cos\nsystem\nsb.",
    "hook": b"\x80\x02ctorch._utils\n_rebuild_parameter\nNNcos\nsystem\n\x87R.",
    "from type": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nNX\x01\x00\x00\x00x\x85NtR.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"\x80\x02cos\nsystem\nQ.",
    "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\nX\x06\x00\x00\x00system\x86R.",
}


@pytest.mark.parametrize("write", [archive, legacy])
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_run(tmp_path: Path, monkeypatch, name: str, write) -> None:
    monkeypatch.chdir(tmp_path)
    code, message = refusal(write(tmp_path / "model.bin", ATTACKS[name]))
    assert code in ("BU203", "BU204")
    assert "not a state dict" in message or "no code of it was run" in message
    assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]


def test_the_attacks_are_real(tmp_path: Path, monkeypatch) -> None:
    """Python's own pickle writes the marker."""
    monkeypatch.chdir(tmp_path)
    for name in ("reduce", "builtins", "open", "inst", "obj", "stack global", "in a dict"):
        with pytest.warns(ResourceWarning) if name == "open" else _nothing():
            pickle.loads(ATTACKS[name])
        assert (tmp_path / MARKER).is_file()
        (tmp_path / MARKER).unlink()


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def tensor(numel: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], key: str = "0") -> bytes:
    """{"a": a tensor of float32}, as torch writes it."""
    body = b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
    body += b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + _text(key) + _text("cpu") + _number(numel) + b"tQ"
    body += _number(offset) + _numbers(shape) + _numbers(strides) + b"\x89NtRs."
    return body


def _text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word.encode())) + word.encode()


def _number(number: int) -> bytes:
    return b"\x8a\x10" + number.to_bytes(16, "little", signed=True)


def _numbers(numbers: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


def test_the_helper_writes_what_torch_writes(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.bin", tensor(6, 0, (2, 3), (3, 1)), **{"0": bytes(24)})
    assert open_checkpoint(path).headers["a"].shape == (2, 3)


@pytest.mark.parametrize(
    "pickled",
    [
        tensor(6, 1, (2, 3), (3, 1)),
        tensor(6, 0, (2, 4), (3, 1)),
        tensor(7, 0, (7,), (1,)),  # the pickle's storage is larger than the file's
        tensor(6, -1, (2,), (1,)),
        tensor(6, 0, (2,), (-1,)),
        tensor(6, 0, (1 << 40,), (0,)),
        tensor(6, 0, (1 << 62, 1 << 62), (0, 0)),
        tensor(6, 0, (1,) * 65, (1,) * 65),
        tensor(6, 0, (2, 3), (3,)),
        tensor(6, 0, (6,), (1,), key="1"),
        tensor(6, 0, (6,), (1,), key="../../data.pkl"),
        tensor(1 << 100, 0, (6,), (1,)),
    ],
    ids=range(12),
)
def test_tensors_beyond_their_storage(tmp_path: Path, pickled: bytes) -> None:
    assert refusal(archive(tmp_path / "model.bin", pickled, **{"0": bytes(24)}))[0] == "BU203"


BOMBS: dict[str, Callable[[], bytes]] = {  # created in the test: some are large
    "marks": lambda: b"\x80\x02" + b"(" * 1_000_000 + b".",
    "tuples": lambda: b"\x80\x02)" + b"\x85" * 3_000_000 + b".",
    "lists": lambda: b"\x80\x02" + b"]" * 3_000_000 + b".",
    "memo": lambda: b"\x80\x02}" + b"".join(b"r" + struct.pack("<I", n) for n in range(1_000_000)) + b".",
    "long string": lambda: b"\x80\x02X\xff\xff\xff\x7f" + b"x" * 100 + b".",
    "endless string": lambda: b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "long integer": lambda: b"\x80\x02\x8b\xff\xff\xff\x7f" + b"x" * 100 + b".",
    "digits": lambda: b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
    "line": lambda: b"\x80\x02c" + b"x" * 1_000_000,
    "nested lists": lambda: b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "itself": lambda: b"\x80\x02]q\x00h\x00a.",
    "doubling": lambda: b"\x80\x02]q\x00" + b"(h\x00h\x00lq\x00" * 100_000 + b".",
    "one string many times": lambda: (
        b"\x80\x02ctorch\ndevice\n" + b"X\x00\x00\x10\x00" + b"x" * (1 << 20) + b"q\x00(" + b"h\x00" * 3000 + b"tR."
    ),
    "a device of a long name": lambda: b"\x80\x02ctorch\ndevice\nX\x00\x00\x01\x00" + b"x" * (1 << 16) + b"\x85R.",
    "one list many times": lambda: (
        b"\x80\x02]("
        + b"X\x01\x00\x00\x00aN\x86" * 20_000
        + b"e\x85q\x000"
        + b"ccollections\nOrderedDict\nq\x010"
        + b"h\x01h\x00R0" * 300
        + b"N."
    ),
    "sizes of a list": lambda: (
        b"\x80\x02](" + b"N" * 20_000 + b"e\x85q\x000ctorch\nSize\nq\x010" + b"h\x01h\x00R" * 3000 + b"."
    ),
    "no stop": lambda: b"\x80\x02N",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path: Path, name: str) -> None:
    assert refusal(archive(tmp_path / "model.bin", BOMBS[name]()))[0] == "BU203"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuples", "lists", "memo", "doubling"])
def test_bombs_in_time_and_memory(tmp_path: Path, name: str) -> None:
    assert_one_error(check("--checkpoint", archive(tmp_path / "model.bin", BOMBS[name]())), "BU203")


def test_a_tensor_that_is_rebuilt_by_its_rebuilder(tmp_path: Path) -> None:
    """Arguments within arguments, each a call of the same function: deeper than Python's stack."""
    build = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    body = b"\x80\x02" + build + b"q\x000ctorch\nTensor\nq\x010)"
    for _ in range(5000):  # (build, Tensor, the arguments so far, None)
        body += b"q\x020(h\x00h\x01h\x02Nt"
    body += b"q\x020h\x00h\x02R."
    code, message = refusal(archive(tmp_path / "model.bin", body))
    assert (code, "not rebuilt by a function of torch" in message) == ("BU203", True)


def spoilt(path: Path, change) -> Path:
    archive(path, tensor(6, 0, (2, 3), (3, 1)), **{"0": bytes(24)})
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-30],
        lambda data: data[:100],
        lambda data: data.replace(b"PK\x01\x02", b"PK\x01\x03"),
        lambda data: data[:30] + data[31:],
        lambda data: data.replace(b"PK\x03\x04", b"PK\x03\x05", 2).replace(b"PK\x03\x05", b"PK\x03\x04", 1),
        lambda data: data[:-12] + b"\xff\xff" + data[-10:],
        lambda data: data[:-6] + b"\xff\xff\xff\x7f" + data[-2:],
        lambda data: data.replace(b"archive/data/0", b"archive/data\xff0"),
    ],
    ids=range(8),
)
def test_spoilt_archives(tmp_path: Path, change) -> None:
    assert refusal(spoilt(tmp_path / "model.bin", change))[0] == "BU209"


def test_members_that_share_bytes(tmp_path: Path) -> None:
    """One member listed many times under other names, as archives do that inflate to petabytes."""
    path = tmp_path / "model.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", bytes(1000))
        entry = file.filelist[0]
        for number in range(9):
            twin = zipfile.ZipInfo(f"{number}.npy")
            for slot in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(twin, slot, getattr(entry, slot))
            file.filelist.append(twin)
            file.NameToInfo[twin.filename] = twin
    assert refusal(path) == ("BU209", refusal(path)[1])
    assert "shares bytes" in refusal(path)[1]


def test_an_array_that_inflates_to_less_or_more(tmp_path: Path) -> None:
    import numpy as np

    np.savez_compressed(tmp_path / "model.npz", a=np.zeros(1 << 20, np.uint8))
    data = (tmp_path / "model.npz").read_bytes()
    opened = open_checkpoint(tmp_path / "model.npz")
    info = opened.headers["a"]
    (tmp_path / "model.npz").write_bytes(data[: info.offset + 40] + b"\xff" * 40 + data[info.offset + 80 :])
    with pytest.raises(BringupError, match="BU209"):
        opened.read(info)
