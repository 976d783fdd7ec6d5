"""Fuzzes the loading and first use of tokenizers: tokenizer.json, and GGUF metadata.

It runs in this process, without the sandbox process in which bringup first loads a tokenizer of unknown origin: the
search is for errors that reach the user without a code. An input that ends the process is visible as a run that stops.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from benchmarks.fuzz.driver import Target, main
from benchmarks.fuzz.gguf_header import LLAMA, file_of, pair
from benchmarks.fuzz.mutate import mutated, mutated_json, written
from benchmarks.fuzz.scratch import scratch_folder
from bringup.compile.text.tokenizer import load_tokenizer

FOLDER = scratch_folder()
TEXT = "ab  aab <s>\u00e9\u2603 12 \U0001f600\n"
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r" ?\p{L}+|\s+"}, "behavior": "Isolated", "invert": False}
ENDS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
STEPS = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def whole(model: dict[str, Any], **parts: Any) -> bytes:
    words = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<s>", **ADDED}],
    }
    words |= {"normalizer": None, "pre_tokenizer": None, "post_processor": ENDS, "decoder": None}
    return json.dumps(words | parts | {"model": model}).encode()


BPE = {
    "type": "BPE",
    "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "aab": 4, "<0xC3>": 5},
    "merges": [["a", "b"], ["a", "ab"]],
}
JSON = [
    whole(BPE, pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, LEVEL]}, decoder=LEVEL),
    whole(
        BPE | {"unk_token": "<s>", "fuse_unk": True, "byte_fallback": True},
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "NFC"}]},
        decoder={"type": "Sequence", "decoders": [*STEPS, STRIP]},
    ),
    whole({"type": "Unigram", "unk_id": 0, "vocab": [["<s>", 0.0], ["a", -1.0], ["ab", -1.5]], "byte_fallback": False}),
    whole(
        {"type": "WordLevel", "unk_token": "<s>", "vocab": {"<s>": 0, "ab": 1}}, pre_tokenizer={"type": "Whitespace"}
    ),
]
VOCAB = [
    pair("tokenizer.ggml.token_type", 5, [3, 1, 1, 1, 4, 6]),
    pair("tokenizer.ggml.bos_token_id", 4, 0),
    pair("tokenizer.chat_template", 8, "{{ messages }}"),
]
PIECES = pair("tokenizer.ggml.tokens", 8, ["<s>", "a", "b", "ab", "aab", "<0xC3>"])
SCORES = pair("tokenizer.ggml.scores", 6, [0.0, -3.0, -4.0, -1.0, -2.0, 0.0])
MERGES = pair("tokenizer.ggml.merges", 8, ["a b", "a ab"])
TIDY = pair("tokenizer.ggml.remove_extra_whitespaces", 7, 1)
GGUF = [
    file_of([*LLAMA, pair("tokenizer.ggml.model", 8, kind), PIECES, *VOCAB, *rest], [], 0)
    for kind, rest in (
        ("llama", [SCORES]),
        ("t5", [SCORES, TIDY]),
        ("gpt2", [MERGES, pair("tokenizer.ggml.pre", 8, "qwen2")]),
    )
]
TOKENS = [b'"type"', b'"Sequence"', b"(a+)+$", b"\\\\p{L}", b"<0xFF>", b"tokenizer.ggml.", b"\xe2\x96\x81", b"null"]


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Bytes half of the time; else the file as JSON."""
    data = random.choice(seeds)
    if random.random() < 0.5 or data[:4] == b"GGUF":
        return mutated(random, [data], TOKENS)
    try:
        return written(random, mutated_json(random, json.loads(data)))
    except (ValueError, RecursionError):
        return mutated(random, [data], TOKENS)


def parse(data: bytes) -> object:
    """Loads, encodes, decodes and streams."""
    file = FOLDER / "tokenizer.json"
    file.write_bytes(data)
    tokenizer = load_tokenizer(file, trusted=True)
    ids = [*tokenizer.encode(TEXT)[:50], 0, 1, 2, 5, 2**32 - 1]
    stream = tokenizer.stream(skip_special=True)
    return tokenizer.decode(ids), [stream.push(number) for number in ids], stream.finish()


TARGET = Target(
    name="tokenizer-file",
    about="`compile/text/tokenizer.py`: a tokenizer.json or GGUF file is loaded, a text encoded and streamed back.",
    seeds=[*JSON, *GGUF],
    parse=parse,
    mutate=mutate,
)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    sys.exit(main(TARGET))
