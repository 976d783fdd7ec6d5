"""SentencePiece models in GGUF: pieces with scores. A space is written as U+2581, unknown characters as bytes.

`llama` merges the adjacent pair whose merged piece has the highest score (SentencePiece's `bpe_model.cc`). As a BPE,
that is the list of all pairs that form a piece, highest score first. `gemma4` is the same with a list of merges. `t5`
is a unigram model: it maximises the sum of scores.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from bringup.compile.text.gguf_vocab import BYTE, NORMAL, Vocab, broken, numbers

SPACE = "\u2581"
MOST_SPLITS = 1 << 22  # ways to split a piece in two; a vocabulary of 262,144 has under 2 million


def scored_merges(vocab: Vocab) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, model and decoder of a `llama` model. Raises BU231."""
    return _whole([], _bpe(vocab, _merges(vocab)), prefix=_adds_space(vocab))


def listed_merges(vocab: Vocab) -> dict[str, Any]:
    """The same of a `gemma4` model, which never adds a space. Raises BU231.

    llama.cpp also separates newlines from other text, which the model's own tokenizer does not.
    """
    return _whole([], _bpe(vocab, vocab.merges()), prefix=False)


def _bpe(vocab: Vocab, merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": vocab.ids(), "merges": merges, "unk_token": vocab.unknown_token()}
    return {**model, "fuse_unk": True, "byte_fallback": True}


def _merges(vocab: Vocab) -> list[tuple[str, str]]:
    """Every pair of pieces that forms a piece: by score, then by id, then with the shorter left half first."""
    scores = vocab.scores()
    pieces = {token for token, kind in zip(vocab.tokens, vocab.types, strict=True) if kind == NORMAL}
    ranked = sorted(
        (index for index, token in enumerate(vocab.tokens) if token in pieces), key=lambda index: -scores[index]
    )
    if sum(len(piece) for piece in pieces) > MOST_SPLITS:
        raise broken(vocab.meta, f"has pieces of more than {MOST_SPLITS:,} characters together")
    longest = max(map(len, pieces), default=0)
    if longest > 1 << 10:
        raise broken(vocab.meta, f"has a piece of {longest:,} characters")
    merges: list[tuple[str, str]] = []
    for index in ranked:
        piece = vocab.tokens[index]
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        merges += [(left, right) for left, right in halves if left in pieces and right in pieces]
    return merges


def unigram(vocab: Vocab) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, model and decoder of a `t5` model. Raises BU231."""
    meta = vocab.meta
    normalizers: list[dict[str, Any]] = []
    if "tokenizer.ggml.precompiled_charsmap" in meta:
        charsmap = numbers(meta, "precompiled_charsmap")
        if not all(type(number) is int and -128 <= number < 256 for number in charsmap):
            raise broken(meta, "has a `precompiled_charsmap` whose values are not bytes")
        packed = base64.b64encode(bytes(int(number) % 256 for number in charsmap)).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": packed})
    if meta.scalar("tokenizer.ggml.remove_extra_whitespaces", False):
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
    if vocab.unknown_token() is None:
        raise broken(meta, "has no unknown token")
    scored = list(zip(vocab.ids(), vocab.scores(), strict=True))
    model = {"type": "Unigram", "unk_id": vocab.unknown, "vocab": scored, "byte_fallback": BYTE in vocab.types}
    return _whole(normalizers, model, prefix=_adds_space(vocab))


def _adds_space(vocab: Vocab) -> bool:
    return vocab.meta.scalar("tokenizer.ggml.add_space_prefix", True) is not False


def _whole(normalizers: list[dict[str, Any]], model: dict[str, Any], *, prefix: bool) -> dict[str, Any]:
    """A tokenizer without a pre-tokenizer: the text is one word, with spaces as U+2581, and one first if `prefix`."""
    begin = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, *begin, escape]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": model,
    }
