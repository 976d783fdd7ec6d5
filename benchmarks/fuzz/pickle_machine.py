"""Fuzzes the interpreter for the pickles of torch files, with the names that it allows."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from random import Random

import torch

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import INTERESTING, mutated
from bringup.adapters.checkpoints.torch_files.objects import NAMES, storage_of
from bringup.adapters.checkpoints.torch_files.pickle_bytes import PickleError
from bringup.adapters.checkpoints.torch_files.pickle_machine import unpickle
from bringup.diagnostics import fail

BASE = torch.arange(6.0).reshape(2, 3)


def pickled(value: object, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


SEEDS = [
    pickled({"a": BASE, "t": BASE.t(), "p": torch.nn.Parameter(BASE)}),
    pickled({"b": BASE.bfloat16(), "f8": BASE.to(torch.float8_e4m3fn), "u": BASE.to(torch.uint16)}),
    pickled(OrderedDict(a=BASE, n=3, f=0.5, s="x", l=[1, (2, None)], d={"k": True, 7: b"x"}, big=1 << 90), 4),
    pickled(torch.nn.Linear(2, 2).state_dict(), 2),
    pickle.dumps({"a": [1, 2.5, (3, "é"), {"b": None}], "c": -1, "d": 300, "e": 70_000}, 5),
    b"\x80\x02(X\x01\x00\x00\x00aK\x01d(I01\nL12L\nU\x02xyT\x02\x00\x00\x00xylp0\ng0\n0(1N2\x86.",
]
TOKENS = [b"cos\nsystem\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n"]
TOKENS += [b"q\x00", b"h\x00", b"h\x01", b"(", b"t", b"R", b"Q", b"b", b"\x81", b"\x93", b"u", b"e", b"}", b"]", b")"]
TOKENS += [
    b"\x85",
    b"\x86",
    b"\x87",
    b"0",
    b"1",
    b"2",
    b".",
    b"N",
    b"\x88",
    b"K\x01",
    b"X\x01\x00\x00\x00a",
    b"r",
    b"\x94",
]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Changes bytes, replaces opcodes, so that most of the pickle stays valid, or inserts a large number."""
    if random.random() < 0.5:
        return mutated(random, seeds, TOKENS)
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randint(0, len(data))
        word = random.choice(TOKENS)
        if random.random() < 0.3:
            number = random.choice(INTERESTING) * random.choice((1, 1, -1))
            word = b"\x8a\x09" + (number % (1 << 71)).to_bytes(9, "little")
        data[at : at + random.choice((0, len(word)))] = word * random.choice((1, 1, 1, 50))
    return bytes(data)


def parse(data: bytes) -> object:
    try:
        return unpickle(data, 0, NAMES, storage_of)[0]
    except PickleError as error:
        raise fail("BU204" if error.name else "BU203", str(error)) from None


TARGET = Target(
    name="pickle-machine",
    about="`adapters/checkpoints/torch_files/pickle_machine.py`, with the names that it allows.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
