"""Fuzzes the reader of zip archives and of torch files, which are zip archives, and compares it with zipfile."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from collections.abc import Sequence
from random import Random

import torch

from benchmarks.fuzz.driver import ACCEPTED, Target, main
from benchmarks.fuzz.mutate import INTERESTING, mutated
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.checkpoints.torch_files.torch_file import read_torch
from bringup.adapters.checkpoints.zip_container import read_zip
from bringup.diagnostics import BringupError

FILE = scratch_folder() / "model.bin"
BASE = torch.arange(6.0).reshape(2, 3)
TOKENS = [
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"data.pkl",
    b"data/0",
    b"byteorder",
]


def saved(*, zipped: bool = True, wide: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save({"a": BASE, "t": BASE.t(), "b": BASE.bfloat16()}, file, _use_new_zipfile_serialization=zipped)
    return _wide(file) if wide else file.getvalue()


def _wide(file: io.BytesIO) -> bytes:
    """The same with zip64 fields, as of files of more than 4 GiB."""
    out = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            with new.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(old.read(name))
    return out.getvalue()


SEEDS = [saved(), saved(wide=True), saved(zipped=False)]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Half of the time a field of a record: an offset, a size, a count, a flag."""
    data = bytearray(random.choice(seeds))
    marks = [at for at in range(len(data) - 4) if data[at : at + 2] == b"PK" and data[at + 2] < 8]
    if random.random() < 0.5 or not marks:
        return mutated(random, seeds, TOKENS)
    for _ in range(random.choice((1, 1, 2, 4))):
        at, width = random.choice(marks) + random.randrange(4, 50), random.choice((1, 2, 4, 8))
        number = random.choice((random.randrange(64), len(data) - random.randrange(64), random.choice(INTERESTING)))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


def parse(data: bytes) -> object:
    FILE.write_bytes(data)
    return read_torch(FILE)


def oracle(data: bytes) -> str:
    """What we accept as an archive, opened by zipfile: the same members, of the same sizes."""
    try:
        parse(data)
    except BringupError:
        return "not asked"
    if not data.startswith(b"PK"):
        return ACCEPTED
    ours = {name: (member.packed, member.nbytes) for name, member in read_zip(FILE).items()}
    try:
        with zipfile.ZipFile(FILE) as archive:
            its = {entry.filename: (entry.compress_size, entry.file_size) for entry in archive.infolist()}
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError) as error:
        return type(error).__name__
    return ACCEPTED if its == ours else "other members"


TARGET = Target(
    name="zip-container",
    about="`adapters/checkpoints/zip_container.py` and `torch_files/`; zipfile is shown the archives that we accept.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
    oracle=oracle,
    share=0.1,
    explained={
        "^other members$": "a name beyond ASCII without the flag for UTF-8, which zipfile reads as code page 437, or a "
        "NUL in it, where zipfile ends it",
        "^BadZipFile$": "zipfile also checks fields that place no byte: the version, or extra fields of other kinds",
        "^NotImplementedError$": "a version that zipfile does not know",
    },
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
