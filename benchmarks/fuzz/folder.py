"""Fuzzes the reader of folders: an index and two shards, all three mutated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from random import Random

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import document_of, mutated, mutated_json, written
from benchmarks.fuzz.safetensors_header import seed
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.checkpoints.folder import read_folder

FOLDER = scratch_folder()
INDEX, X, Y = (FOLDER / name for name in ("model.safetensors.index.json", "x.safetensors", "y.safetensors"))
CUT = b"\0--8<--\0"  # between the three files of an input
NAMES = ["x.safetensors", "y.safetensors", "z.safetensors", "../x.safetensors", "x\0", "", ".", "/dev/zero", "x" * 300]


def folder(index: object, x: bytes, y: bytes) -> bytes:
    return CUT.join((json.dumps(index).encode(), x, y))


def owners(**where: str) -> dict[str, object]:
    return {"metadata": {"total_size": 8}, "weight_map": {name: f"{stem}.safetensors" for name, stem in where.items()}}


ONE, TWO, BOTH = (seed(*((name, "U8", [4], 4) for name in names)) for names in ("a", "b", "ab"))
SEEDS = [folder(owners(a="x", b="y"), ONE, TWO), folder(owners(a="x"), BOTH, TWO), folder(owners(a="x"), BOTH, ONE)]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """The index's values, its file names, its bytes, or a shard."""
    index, x, y = [*random.choice(seeds).split(CUT), b"", b""][:3]
    way = random.random()
    document = document_of(index)
    if way < 0.3 and document is not None:
        return CUT.join((written(random, mutated_json(random, document)), x, y))
    names = document.get("weight_map") if isinstance(document, dict) else None
    if way < 0.5 and isinstance(names, dict):
        names[random.choice([*names, "c"])] = random.choice(NAMES)
        return CUT.join((written(random, document), x, y))
    if way < 0.75:
        return CUT.join((mutated(random, [index], [name.encode() for name in NAMES]), x, y))
    return CUT.join((index, mutated(random, [x]), y) if random.random() < 0.5 else (index, x, mutated(random, [y])))


def parse(data: bytes) -> object:
    """An empty part is a file that is not there."""
    for path, part in zip((INDEX, X, Y), [*data.split(CUT), b"", b""], strict=False):
        if part:
            path.write_bytes(part)
        else:
            path.unlink(missing_ok=True)
    return read_folder(FOLDER)


TARGET = Target(
    name="folder",
    about="`adapters/checkpoints/folder.py`: a folder of an index and two shards.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    sys.exit(main(TARGET))
