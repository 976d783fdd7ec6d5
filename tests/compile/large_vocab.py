"""A SentencePiece vocabulary as large as Gemma's, with more ways to merge: 262,144 tokens, 580,000 merges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from typing import Any

from tests.compile.tokenizer_files import write_tokenizer

SIZE = 262_144
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]


def words() -> Iterator[str]:
    """Every word of up to 8 of four letters, each made of shorter ones in every way; then words that nothing makes."""
    yield from ("".join(letters) for length in range(1, 9) for letters in product("abc\u2581", repeat=length))
    yield from (f"\u4e2d{number:x}\u6587".translate(DIGITS) for number in count())


DIGITS = {ord(digit): 0x0561 + at for at, digit in enumerate("0123456789abcdef")}  # Armenian: no token is one letter


def large_gguf(path: Path, **changes: Any) -> Path:
    """A GGUF file with that vocabulary, whose other 6,000 tokens are user-defined, as Gemma's `<unused0>`."""
    unused = [f"<unused{number}>" for number in range(6000)]
    first = [*SPECIAL, *BYTES, *unused]
    normal = list(islice(words(), SIZE - len(first)))
    values = {
        "model": "llama",
        "tokens": [*first, *normal],
        "scores": [0.0] * len(first) + [-float(at) for at in range(len(normal))],
        "token_type": [3, 3, 3, 2, *([6] * 256), *([4] * 6000), *([1] * len(normal))],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
    }
    return write_tokenizer(path, values | changes)
