"""Fuzzes the reader of GGUF headers and metadata, and compares it with gguf-py."""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Sequence
from random import Random

import gguf

from benchmarks.fuzz.driver import ACCEPTED, Target, main
from benchmarks.fuzz.mutate import INTERESTING, mutated
from benchmarks.fuzz.scratch import scratch_folder
from bringup.adapters.checkpoints.gguf_tensors import UNREAD
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.diagnostics import BringupError

FILE = scratch_folder() / "model.gguf"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SIZES = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length")
TOKENS = [b"GGUF", b"llama.", b"general.alignment", b"general.architecture", b"split.count", b"rope_freqs.weight"]
TOKENS += [struct.pack("<I", number) for number in range(14)] + [struct.pack("<Q", 2**64 - 1), b"\xff" * 4]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: object) -> bytes:
    """A key with a scalar, a string or, for a list, an array of `kind`."""
    if isinstance(value, list):
        parts = [text(part) if kind == 8 else struct.pack("<" + SCALARS[kind], part) for part in value]
        return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(parts)
    encoded = text(str(value)) if kind == 8 else struct.pack("<" + SCALARS[kind], value)
    return text(key) + struct.pack("<I", kind) + encoded


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(keys: Sequence[bytes], infos: Sequence[bytes], data: int, align: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % align) + bytes(data)


LLAMA = [pair("general.architecture", 8, "llama"), *(pair(f"llama.{name}", 4, 2) for name in SIZES)]
EVERY = [pair(f"x.{kind}", kind, 1) for kind in SCALARS] + [pair(f"y.{kind}", kind, [1, 0, 1]) for kind in SCALARS]
WORDS = [pair("tokenizer.ggml.tokens", 8, ["a", "b", "é", ""]), pair("tokenizer.ggml.scores", 6, [0.0, 1.0, 2.0, -1.5])]
KINDS = sorted(set(gguf.GGML_QUANT_SIZES) - {gguf.GGMLQuantizationType(number) for number in UNREAD})
SEEDS = [
    file_of(LLAMA, [tensor("token_embd.weight", (2, 4), 0, 0), tensor("output.weight", (2, 4), 1, 32)], 64),
    file_of([*LLAMA, *EVERY, *WORDS], [tensor("a", (), 0, 0)], 32),
    file_of([*LLAMA, pair("general.alignment", 4, 64)], [tensor("a", (3,), 24, 0), tensor("b", (5,), 26, 64)], 128, 64),
    file_of(LLAMA, [tensor("rope_freqs.weight", (4,), 0, 0)], 32),
    file_of(
        [*LLAMA, pair("llama.rope.scaling.type", 8, "yarn"), pair("llama.rope.scaling.factor", 6, 4.0)],
        [tensor(f"t{kind}", (gguf.GGML_QUANT_SIZES[kind][0],), kind, 320 * at) for at, kind in enumerate(KINDS)],
        320 * len(KINDS),
    ),
    file_of([pair("general.architecture", 8, "gemma3"), pair("gemma3.block_count", 4, 26)], [], 0),
]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes half of the time; else a length, count, type or offset where the format has one."""
    data = bytearray(random.choice(seeds))
    if random.random() < 0.5 or len(data) < 24:
        return mutated(random, seeds, TOKENS)
    for _ in range(random.choice((1, 1, 2, 4))):
        width = random.choice((4, 8))
        small = [at for at in range(4, min(len(data), 3000) - width) if data[at + 1 : at + width] == bytes(width - 1)]
        at = random.choice(small or [0])
        number = random.choice((random.randrange(64), data[at] + random.choice((-1, 1)), random.choice(INTERESTING)))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


def parse(data: bytes) -> object:
    FILE.write_bytes(data)
    return open_checkpoint(str(FILE))


def oracle(data: bytes) -> str:
    """What we accept, opened by gguf-py. The rest it is not asked: a count of 2^60 has it fill all memory."""
    try:
        parse(data)
    except BringupError:
        return "not asked"
    try:
        gguf.GGUFReader(FILE)
    except (ValueError, KeyError, IndexError, UnicodeDecodeError, MemoryError, OverflowError) as error:
        return type(error).__name__
    return ACCEPTED


TARGET = Target(
    name="gguf-header",
    about="`adapters/checkpoints/gguf*.py` up to the config; gguf-py's `GGUFReader` is shown what we accept.",
    seeds=SEEDS,
    parse=parse,
    mutate=mutate,
    oracle=oracle,
    share=0.05,
    explained={"^ValueError$": "gguf-py wants the alignment as a number of 32 bits; any whole one is read"},
)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    sys.exit(main(TARGET))
