"""Tokenizers for tests, GGUF files that contain them, and the texts that they tokenize."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import sentencepiece

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   three\n\n\tand a tab \r\n end ",
    "Don't we'll THEY'RE I'd've",
    "digits 2024 3.14159 1,000,000 x86_64 ½ ٣ Ⅷ",
    "after spaces:   7  42",
    "naïve façade — “quotes” … ¿qué? ß ǅ",
    "日本語のテキスト 中文 한국어 ไทย हिन्दी",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈☕️ and \U0001f600\U0001f601",
    "def f(x: int) -> int:\n    return x**2  # TODO\n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "a<think>b</think> c",
    "\u00a0non-breaking\u2003em\u200bzero",
    "e\u0301 combining",
    "\u2581 the space of SentencePiece \u2581\u2581 itself",
    "NUL \0 and \x7f",
]


def sentences() -> Iterable[str]:
    """Lines to learn pieces from: these files' own, and the texts."""
    here = Path(__file__)
    lines = [line for file in (here, here.with_name("test_tokenizer.py")) for line in file.read_text().splitlines()]
    return [line for line in lines + TEXTS * 2 if line.strip() and "\0" not in line and "\u2581" not in line]


@cache
def pieces(kind: str, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A small SentencePiece model of type `bpe` or `unigram`."""
    model = io.BytesIO()
    words = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=model,
        vocab_size=520,
        model_type=kind,
        character_coverage=0.98,
        minloglevel=2,
        **words,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kinds_of(model: sentencepiece.SentencePieceProcessor) -> list[int]:
    """`tokenizer.ggml.token_type` of each piece."""
    return [
        2 if model.is_unknown(at) else 3 if model.is_control(at) else 6 if model.is_byte(at) else 1
        for at in range(model.vocab_size())
    ]


def pieces_gguf(truth: sentencepiece.SentencePieceProcessor, kind: str, path: Path, **changes: Any) -> Path:
    """A file as llama.cpp's converter writes one for a SentencePiece model."""
    every = range(truth.vocab_size())
    values = {
        "model": kind,
        "tokens": [truth.id_to_piece(at) for at in every],
        "scores": [truth.get_score(at) for at in every],
        "token_type": kinds_of(truth),
        "bos_token_id": truth.bos_id(),
        "eos_token_id": truth.eos_id(),
        "unknown_token_id": truth.unk_id(),
    }
    return write_tokenizer(path, values | changes)


def charsmap(truth: sentencepiece.SentencePieceProcessor) -> list[int]:
    """`precompiled_charsmap` of a model: field 2 of the message that is its field 3 (`sentencepiece_model.proto`)."""

    def fields(data: bytes) -> dict[int, bytes]:
        found, at = {}, 0
        while at < len(data):
            key, at = varint(data, at)
            length, at = varint(data, at) if key & 7 == 2 else (4 if key & 7 == 5 else 0, at)
            if key & 7 == 0:
                _, at = varint(data, at)
            found[key >> 3] = data[at : at + length]
            at += length
        return found

    return list(fields(fields(truth.serialized_model_proto())[3])[2])


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of a protocol buffer, and where the next field begins."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def write_tokenizer(path: Path, values: dict[str, Any]) -> Path:
    """A GGUF file with `tokenizer.ggml.*` keys; None leaves one out."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        add = {str: writer.add_string, list: writer.add_array, int: writer.add_uint32, bool: writer.add_bool}
        if value is not None:
            name = key if "." in key else f"tokenizer.ggml.{key}"
            add[type(value)](name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
