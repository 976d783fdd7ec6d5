"""Fuzzes the reader of `.npy` and `.npz` files, and compares it with numpy. Accepted arrays are read as well."""

from __future__ import annotations

import io
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from benchmarks.fuzz.driver import ACCEPTED, Target, main
from benchmarks.fuzz.mutate import INTERESTING, mutated
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.sources.file_readers import NUMPY_READER as READER
from bringup.diagnostics import BringupError

FOLDER = scratch_folder()
FILE = FOLDER / "model.npz"
NUMBERS = np.arange(6).reshape(2, 3)
TOKENS = [
    b"'descr': '<f4'",
    b"'|O'",
    b"'>i8'",
    b"'fortran_order': True",
    b"'shape': (3,)",
    b"()",
    b"(2, 3)",
    b"\x93NUMPY",
]


def archive(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def single(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


SEEDS = [
    single(NUMBERS.astype("f4")),
    single(np.asfortranarray(NUMBERS.astype(">i2"))),
    single(np.float64(3).reshape(())),
    archive(np.savez, a=NUMBERS.astype("f4"), b=np.asfortranarray(NUMBERS)),
    archive(np.savez_compressed, a=NUMBERS.astype("f4"), b=np.zeros((0, 3), "u1")),
]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes, or a number in the place of one that the header writes out."""
    if random.random() < 0.6:
        return mutated(random, seeds, TOKENS)
    data = bytearray(random.choice(seeds))
    at = data.find(b"'shape': (") + 10
    if at >= 10:
        number = random.choice((random.randrange(10), random.choice(INTERESTING)))
        data[at : at + random.choice((1, 4))] = f"{number}, "[: random.choice((1, 3, 30))].encode()
    return bytes(data)


def parse(data: bytes) -> object:
    FILE.write_bytes(data)
    opened = READER.open(FILE)
    return {name: opened.read(info) for name, info in opened.headers.items()}


REFUSED = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError)
REFUSED += (SyntaxError, tokenize.TokenError, TypeError, RuntimeError, OverflowError, MemoryError)


def oracle(data: bytes) -> str:
    """numpy, on what we accept: the same names and bits."""
    try:
        ours = parse(data)
    except BringupError:
        return "not asked"
    try:
        loaded = np.load(FILE, allow_pickle=False)
        its = {"model.npz": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded}
    except REFUSED as error:
        return type(error).__name__
    assert isinstance(ours, dict)
    pairs = zip(ours.values(), its.values(), strict=False)
    same = set(map(str, ours)) == set(its) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs
    )
    return ACCEPTED if same else "other arrays"


TARGET = Target(
    name="numpy-files",
    about="`adapters/checkpoints/numpy_files/`, the arrays read; `numpy.load` is shown what we accept.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
    oracle=oracle,
    share=0.05,
    explained={
        "^BadZipFile$": "zipfile compares a checksum, which bringup does not, and fields that place no byte",
        "^NotImplementedError$": "a version that zipfile does not know",
        "^(SyntaxError|TokenError|ValueError)$": "numpy evaluates the header as Python text, and knows no bfloat16",
    },
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
