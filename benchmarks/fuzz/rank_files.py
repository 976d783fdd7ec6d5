"""Fuzzes the reader of TensorRT-LLM folders: the keys of config.json, and the tensors in the file of each rank.

An input is JSON: the config keys and, by rank, the names, dtypes and shapes of a small model. An input that is accepted
is checked.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, cast

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.mutate import document_of, mutated_part
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.convert.forms import form_of
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.convert import models

FOLDER = scratch_folder()
RANKS = 4  # files that an input may have
MOST_LAYERS = 3  # each is planned for each rank, and again for each word that a check tries to correct
NUMBERS = {"float32": ("F32", 4)}
# Of one layer a stage.
SEEDS = {"llama": (1, Parallel(tp=2)), "gpt2": (2, Parallel(pp=2)), "bloom": (1, Parallel(tp=2))}
TOKENS = [f'"{word}"'.encode() for word in ("tp_size", "pp_size", "mapping", "architecture", "F16", "published")]
TOKENS += [b"NaN", b"-1", b"1e999", b"null", b"true", b"[]", b"{}", b"\\ud800", b"10001", b"0"]


def seeds() -> Iterator[bytes]:
    """Small models as `convert --to trtllm` writes them."""
    for model, (layers, parallel) in SEEDS.items():
        tensors, config = getattr(models, model)(layers=layers)
        form = form_of(open_job(checkpoint=dict_checkpoint(tensors, config)), "trtllm", parallel, None)
        ranks = {
            f"rank{rank}": {
                name: [NUMBERS[entry.declared.dtype][0], list(entry.region.shape)]
                for name, entry in form.plan_of(rank).entries.items()
            }
            for rank in range(parallel.size)
        }
        yield json.dumps({"words": dict(form.config), "ranks": ranks}).encode()


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes now and then; else the words, the names of files or one rank's tensors, as JSON."""
    return mutated_part(random, seeds, TOKENS, ["words", "words", "ranks"])


def parse(data: bytes) -> object:
    """The job of the folder that an input describes; errors are raised, as a compile would. No JSON is the words'."""
    for file in FOLDER.iterdir():
        file.unlink()
    document = document_of(data)
    parts = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    (FOLDER / "config.json").write_bytes(data if document is None else json.dumps(shallow(parts.get("words"))).encode())
    ranks = parts.get("ranks")
    for name, tensors in list(ranks.items())[:RANKS] if isinstance(ranks, dict) else ():
        if name.isascii() and name.isalnum():
            header = json.dumps(dict(headers_of(tensors))).encode()
            with (FOLDER / f"{name[:20]}.safetensors").open("wb") as file:
                file.write(struct.pack("<Q", len(header)) + header)
                file.truncate(8 + len(header) + sum_of(tensors))
    job = open_job(checkpoint=FOLDER)
    report = check(job)
    report.raise_if_errors()
    return job


def shallow(words: object) -> object:
    """A config with at most MOST_LAYERS layers, in the published config that it contains as well."""
    match few_layers(words):
        case {"published": published, **others}:
            return {**others, "published": few_layers(published)}
        case found:
            return found


def few_layers(words: object) -> object:
    match words:
        case {"num_hidden_layers": int() as layers} if layers > MOST_LAYERS:
            return {**cast("dict[str, Any]", words), "num_hidden_layers": layers % MOST_LAYERS}
        case _:
            return words


def headers_of(found: object) -> Iterator[tuple[str, object]]:
    """A file's header; what is no dtype and shape stays as it is, for the reader of headers."""
    end = 0
    for name, entry in cast("dict[str, Any]", found).items() if isinstance(found, dict) else ():
        size = nbytes(entry)
        if size is None:
            yield name, entry
        else:
            yield name, {"dtype": entry[0], "shape": entry[1], "data_offsets": [end, end + size]}
            end += size


def sum_of(found: object) -> int:
    """The bytes of a file's tensors, which a hole in the file stands for."""
    entries = cast("dict[str, Any]", found).values() if isinstance(found, dict) else ()
    return sum(nbytes(entry) or 0 for entry in entries)


def nbytes(entry: object) -> int | None:
    """The bytes of a tensor; None where none has such a dtype and shape, or more than a file may."""
    match entry:
        case [str() as dtype, list() as shape]:
            sizes = cast("list[Any]", shape)
            width = {"F32": 4, "F16": 2, "BF16": 2}.get(dtype)
            if width is None or not all(type(size) is int and size >= 0 for size in sizes):
                return None
            for size in sizes:
                width *= size
            return width if width < 1 << 40 else None
        case _:
            return None


@cache
def target() -> Target:
    return Target(
        name="rank-files",
        about="Folders of TensorRT-LLM through `open_job` and `check`: `mapping`, words and the headers of every rank.",
        seeds=[*seeds()],
        parse=parse,
        mutate=mutate,
    )


if __name__ == "__main__":
    sys.exit(main(target()))
