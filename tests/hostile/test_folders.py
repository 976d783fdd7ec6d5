"""Hostile folders: indexes, shard names, and files that are no files."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.adapters.lora.files import open_lora
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError
from tests.hostile.headers import entry, framed
from tests.hostile.watch import assert_one_error, check

INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n"


def shard(*names: str) -> bytes:
    header = {name: entry(offsets=[4 * at, 4 * at + 4]) for at, name in enumerate(names)}
    return framed(header, b"\0" * 4 * len(names))


def indexed(folder: Path, index: object, **shards: bytes) -> None:
    (folder / INDEX).write_bytes(index if isinstance(index, bytes) else json.dumps(index).encode())
    for stem, data in shards.items():
        (folder / f"{stem}.safetensors").write_bytes(data)


def refused(source: Path | str) -> str:
    """The code of the one error."""
    with pytest.raises(BringupError) as caught:
        open_checkpoint(str(source))
    (finding,) = caught.value.findings
    assert finding.help
    assert caught.value.exit_code == (2 if finding.code.startswith("BU0") else 1)
    return finding.code


def weight_map(**owners: object) -> dict[str, object]:
    return {"weight_map": owners}


NO_INDEX = {
    "nothing": b"",
    "random": bytes(range(256)),
    "not utf-8": b'{"weight_map": {"\xff": "x"}}',
    "a list": [],
    "no map": {},
    "map null": {"weight_map": None},
    "map a list": {"weight_map": ["x.safetensors"]},
    "map empty": {"weight_map": {}},
    "map of numbers": weight_map(a=1),
    "map of lists": weight_map(a=["x.safetensors"]),
    "map twice": b'{"weight_map": {"a": "x"}, "weight_map": {"a": "y"}}',
    "a tensor twice": b'{"weight_map": {"a": "x", "a": "y"}}',
    "deep": b'{"weight_map":' * 100_000,
    "deep beside the map": b'{"weight_map": {"a": "x"}, "metadata": %s1%s}' % (b"[" * 500, b"]" * 500),
    "digits": b'{"total_size": %s}' % (b"1" * 1_000_000),
}
NAMES = ["", ".", "..", "../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors", "a\0.safetensors"]
NAMES += ["x/../../y", "https://example.org/x.safetensors", "\ud800.safetensors", "file:///etc/passwd"]


@pytest.mark.parametrize("name", NO_INDEX)
def test_what_is_no_index(tmp_path: Path, name: str) -> None:
    indexed(tmp_path, NO_INDEX[name], x=shard("a"))
    assert refused(tmp_path) == refused(tmp_path / INDEX) == "BU214"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_shards_outside_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "y").write_bytes(shard("a"))
    folder = tmp_path / "model"
    folder.mkdir()
    indexed(folder, weight_map(a=name), x=shard("a"))
    assert refused(folder) == "BU214"


def test_endless_shard_name(tmp_path: Path) -> None:
    indexed(tmp_path, weight_map(a="x" * 5000))
    assert refused(tmp_path) == "BU215"


DISAGREE: dict[str, tuple[str, dict[str, object], dict[str, bytes]]] = {
    "missing shard": ("BU215", weight_map(a="x.safetensors", b="y.safetensors"), {"x": shard("a")}),
    "in the wrong shard": (
        "BU216",
        weight_map(a="x.safetensors", b="x.safetensors", c="y.safetensors"),
        {"x": shard("a"), "y": shard("b", "c")},
    ),
    "in two shards, and the index names neither": (
        "BU216",
        weight_map(a="x.safetensors", b="y.safetensors"),
        {"x": shard("a", "c"), "y": shard("b", "c")},
    ),
    "a shard of no bytes": ("BU211", weight_map(a="x.safetensors"), {"x": b""}),
    "a pointer": ("BU206", weight_map(a="x.safetensors"), {"x": POINTER}),
    "a pointer that is not text": ("BU206", weight_map(a="x.safetensors"), {"x": POINTER[:-10] + b"\xff\n"}),
    "the index is a shard": ("BU211", weight_map(a=INDEX), {}),
}


@pytest.mark.parametrize("name", DISAGREE)
def test_index_and_shards_disagree(tmp_path: Path, name: str) -> None:
    code, index, shards = DISAGREE[name]
    indexed(tmp_path, index, **shards)
    assert refused(tmp_path) == code


def test_two_files_and_no_index(tmp_path: Path) -> None:
    for stem in "xy":
        (tmp_path / f"{stem}.safetensors").write_bytes(shard("a"))
    assert refused(tmp_path) == "BU217"


def to_itself(path: Path) -> None:
    path.symlink_to(path)


def to_one_another(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to("gone")


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": to_itself,
    "loop of two": to_one_another,
    "link to nothing": nowhere,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/full": lambda path: path.symlink_to("/dev/full"),
    "socket": a_socket,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """As the weights, alone, in a folder, and behind an index; as the index itself."""
    make = SPECIAL[kind]
    for number, name in enumerate(("model.safetensors", "x.safetensors", "m.gguf", INDEX)):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / name)
        assert refused(folder) == "BU233"
        if kind != "folder":
            assert refused(folder / name) == "BU233"
        if name == "x.safetensors":
            indexed(folder, weight_map(a=name))
            assert refused(folder) == ("BU215" if "l" in kind[:4] and kind != "folder" else "BU233")


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_config_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """It is not taken for a config that is absent."""
    (tmp_path / "model.safetensors").write_bytes(shard("a"))
    SPECIAL[kind](tmp_path / "config.json")
    assert refused(tmp_path) == "BU233"


@pytest.mark.parametrize("kind", SPECIAL)
def test_the_config_of_an_adapter_that_is_no_file(tmp_path: Path, kind: str) -> None:
    SPECIAL[kind](tmp_path / "adapter_config.json")
    with pytest.raises(BringupError, match=r"BU233: .*adapter_config.json` (is a|cannot be opened)"):
        open_lora(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "loop", "/dev/zero", "socket"])
def test_nothing_waits(tmp_path: Path, kind: str) -> None:
    SPECIAL[kind](tmp_path / "model.safetensors")
    assert_one_error(check("--checkpoint", tmp_path), "BU233")


def test_stdin_is_no_checkpoint() -> None:
    reading, writing = os.pipe()
    try:
        assert_one_error(check("--checkpoint", "/dev/stdin", stdin=reading), "BU233")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything: what the system would say is said for it."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(shard("a"))
    plain = Path.open

    def denied(path: Path, *words: str, **more: object) -> object:
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *words, **more)

    monkeypatch.setattr(Path, "open", denied)
    assert refused(tmp_path) == refused(file) == "BU233"


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard("a"))
    monkeypatch.setattr(os, "access", lambda path, mode, **_: False)
    with pytest.raises(BringupError, match=f"BU233: `{tmp_path}` cannot be read: permission denied"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "source", ["a\0b", "x" * 5000, "~nobody-of-that-name/x", "/" + "y/" * 3000, "\ud800", "\x1b[2J"]
)
def test_paths_that_cannot_be(source: str) -> None:
    assert refused(source) == "BU034"


ELSEWHERE = {".h5": b"\x89HDF", ".msgpack": b"\x82", ".onnx": b"\x08", ".whl": b"PK\x03\x04"}


@pytest.mark.parametrize("suffix", ELSEWHERE)
def test_formats_that_are_not_read(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"pytorch_model{suffix}"
    file.write_bytes(ELSEWHERE[suffix])
    assert refused(file) == "BU205"
    assert refused(tmp_path) == "BU201"


SHORT = {
    ".gguf": ("BU221", "GGUF header"), ".safetensors": ("BU211", "safetensors header"), ".npy": ("BU210", "numpy"),
    ".npz": ("BU209", "zip archive"), ".bin": ("BU203", "state dict"), ".pth": ("BU203", "state dict"),
    ".ckpt": ("BU205", "not a file of weights"), "": ("BU205", "not a file of weights"),
}  # fmt: skip


@pytest.mark.parametrize("data", [b"", b"GGU"])
@pytest.mark.parametrize("suffix", SHORT)
def test_files_that_end_before_any_header(tmp_path: Path, suffix: str, data: bytes) -> None:
    """The error is that of the format which the name claims."""
    file = tmp_path / f"x{suffix}"
    file.write_bytes(data)
    code, form = SHORT[suffix]
    with pytest.raises(BringupError) as caught:
        open_checkpoint(str(file))
    (finding,) = caught.value.findings
    assert (finding.code, finding.file) == (code, str(file))
    assert form in finding.message
    assert finding.message.endswith("the file has only 3 bytes" if data else "the file is empty")


@pytest.mark.slow
def test_index_bombs(tmp_path: Path) -> None:
    """A million entries in one file; as many files as tensors, 100,000 which takes 5 µs for each."""
    rows = b",".join(b'"tensor.%d":"s%d.safetensors"' % (n, n) for n in range(1_000_000))
    indexed(tmp_path, b'{"weight_map":{' + rows + b"}}")
    assert_one_error(check("--checkpoint", tmp_path), "BU214")
    rows = b",".join(b'"tensor.%d":"s%d.safetensors"' % (n, n) for n in range(100_000))
    indexed(tmp_path, b'{"weight_map":{' + rows + b"}}")
    assert_one_error(check("--checkpoint", tmp_path), "BU215")


def test_many_shards_that_lack_their_tensors(tmp_path: Path) -> None:
    """Work grows with the shards plus the tensors, not with their product."""
    (tmp_path / "empty").write_bytes(framed({}))
    count = 2000
    for number in range(count):
        os.link(tmp_path / "empty", tmp_path / f"s{number}.safetensors")
    owners = {f"t{number}": f"s{number % count}.safetensors" for number in range(100_000)}
    indexed(tmp_path, {"weight_map": owners})
    assert_one_error(check("--checkpoint", tmp_path), "BU216")
