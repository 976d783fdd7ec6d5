"""`bringup check` of hostile GGUF files, as a process: one error, exit 1 or 2, under a second and 200 MB."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.gguf_files import file_of, pair, tensor, text
from tests.hostile.watch import assert_one_error, check

SIZES = (
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "block_count",
    "context_length",
    "vocab_size",
)


def llama(**changes: int) -> tuple[bytes, ...]:
    """The keys of a small Llama, with others in their place."""
    sizes = {name: 64 for name in SIZES} | {"attention.head_count": 4, "block_count": 2} | changes
    numbers = (pair(f"llama.{name.replace('__', '.')}", 10, struct.pack("<Q", size)) for name, size in sizes.items())
    eps = pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))
    return (pair("general.architecture", 8, text("llama")), *numbers, eps)


def array(key: str, kind: int, count: int, data: bytes) -> bytes:
    return pair(key, 9, struct.pack("<IQ", kind, count) + data)


def sparse(path: Path, head: bytes, size: int) -> Path:
    """A file that is all holes after its head."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def most_tensors(path: Path) -> Path:
    """As many as are read, none of which the model wants."""
    infos = [tensor(f"blk.{number}.w", (1,), 24, 32 * number) for number in range(32_768)]
    path.write_bytes(file_of(*infos, keys=llama(), data=bytes(32 * 32_768)))
    return path


def head(*keys: bytes, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(keys)) + b"".join(keys)


FILES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "a million tensors": ("BU225", lambda path: sparse(path, head(*llama(), tensors=10**6), 2**26)),
    "10^9 numbers": ("BU225", lambda path: sparse(path, head(array("x", 4, 10**9, b"")), 5 * 10**9)),
    "10^9 empty strings": ("BU225", lambda path: sparse(path, head(array("x", 8, 10**9, b"")), 9 * 10**9)),
    "a string of 8 GB": ("BU225", lambda path: sparse(path, head(pair("x", 8, struct.pack("<Q", 2**33))), 2**34)),
    "a key of 8 GB": ("BU225", lambda path: sparse(path, head(struct.pack("<Q", 2**33)), 2**34)),
    "the architecture is an array": (
        "BU221",
        lambda path: sparse(path, head(array("general.architecture", 0, 10**6, bytes(10**6))), 2**21),
    ),
    "the architecture is long": (
        "BU221",
        lambda path: sparse(path, head(pair("general.architecture", 8, text("x" * 10**7))), 2**25),
    ),
    "a hyperparameter of a million numbers": (
        "BU225",
        lambda path: sparse(path, head(*llama(), array("llama.x", 0, 10**6, bytes(10**6))), 2**21),
    ),
    "a billion layers": ("BU124", lambda path: sparse(path, head(*llama(block_count=10**9)), 2**20)),
    "no architecture": ("BU221", lambda path: sparse(path, head(), 2**20)),
    "one tensor of 10^18": (
        "BU208",
        lambda path: sparse(path, head(*llama(), tensors=1) + tensor("a", (10**18,)), 2**20),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_one_error_soon_and_in_little_memory(tmp_path: Path, name: str) -> None:
    code, make = FILES[name]
    assert_one_error(check("--checkpoint", make(tmp_path / "m.gguf")), code)


def test_as_many_tensors_as_are_read(tmp_path: Path) -> None:
    """What the model lacks and what it does not want are two mistakes."""
    seen = check("--checkpoint", most_tensors(tmp_path / "m.gguf"))
    assert {finding["code"] for finding in seen.findings} <= {"BU101", "BU105", "BU111"}
    assert (seen.code, len(seen.findings) < 30) == (1, True)
    assert seen.seconds < 2
    assert seen.megabytes < 200


def test_factors_of_100_gb_are_not_read(tmp_path: Path) -> None:
    """The config is made from a tensor that holds Llama 3.1's factors: 64 numbers, not 25 billion."""
    head = file_of(tensor("rope_freqs.weight", (25 * 10**9,)), keys=llama())
    seen = check("--checkpoint", sparse(tmp_path / "m.gguf", head, 10**11 + 1000))
    assert "BU122" in {finding["code"] for finding in seen.findings}
    assert seen.seconds < 1.5
    assert seen.megabytes < 200
