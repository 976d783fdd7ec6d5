"""Fuzzes the reader of safetensors headers, and compares it with the `safetensors` library."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from random import Random

from safetensors import SafetensorError, safe_open

from benchmarks.fuzz.driver import ACCEPTED, Target, main
from benchmarks.fuzz.mutate import mutated, mutated_json, written
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.checkpoints.safetensors import read_header

FILE = scratch_folder() / "model.safetensors"
TOKENS = [f'"{word}"'.encode() for word in ("F32", "BF16", "F4", "I8", "__metadata__", "shape", "dtype", "a", "")]
TOKENS += [b"NaN", b"-1", b"1e400", b"null", b"true", b"\xef\xbb\xbf", b"\\ud800", b"[0,0]", b"{}", b" " * 64]


def framed(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def seed(*tensors: tuple[str, str, list[int], int], metadata: dict[str, str] | None = None, pad: int = 0) -> bytes:
    """A valid file of tensors (name, dtype, shape, bytes)."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    return framed(json.dumps(header).encode() + b" " * pad, bytes(end))


SEEDS = [
    seed(("a", "F32", [2, 3], 24)),
    seed(("a", "F32", [2], 8), ("b", "BF16", [4, 1], 8), ("c", "U8", [], 1), metadata={"format": "pt"}, pad=5),
    seed(("h.0.w", "F8_E4M3", [3], 3), ("h.1.w", "F4", [4], 2), ("e", "I64", [0], 0)),
    seed(("é\n", "BOOL", [1, 1, 1, 5], 5)),
    framed(b"{}"),
]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes half of the time; else the header as JSON, framed again with its own length."""
    data = random.choice(seeds)
    if random.random() < 0.5 or len(data) < 10:
        return mutated(random, seeds, TOKENS)
    length = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return framed(mutated(random, [data[8 : 8 + length]], TOKENS), data[8 + length :])
    return framed(written(random, mutated_json(random, header)), data[8 + length :])


def parse(data: bytes) -> object:
    FILE.write_bytes(data)
    return read_header(FILE)


def oracle(data: bytes) -> str:
    """The same file, opened by the library."""
    FILE.write_bytes(data)
    try:
        with safe_open(FILE, "np") as file:
            file.keys()
    except SafetensorError as error:
        return str(error).split(":")[1].strip().split("(")[0].split(" {")[0]
    return ACCEPTED


TARGET = Target(
    name="safetensors-header",
    about="`adapters/checkpoints/safetensors.py`, beside the `safetensors` library as oracle.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
    oracle=oracle,
    explained={
        "key .*stands twice": "a name or key twice: the library keeps the last, silently",
        "the number .*is too large": "a float beyond any float in a key without meaning",
        "nested too deeply|a number of .*digits|more than .*MiB": "more depth, digits or text than is read here",
    },
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
