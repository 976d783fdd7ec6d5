"""The vocabulary of a GGUF file: tokens, their types and scores, and the ids of special tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bringup.adapters.checkpoints.gguf import Metadata
from bringup.compile.text.gguf_pre import PRE
from bringup.diagnostics import BringupError, fail

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # `tokenizer.ggml.token_type`; 2 is unknown, 5 unused
# llama.cpp's defaults of missing keys: ids of bos, eos and unknown; whether bos and eos are added.
DEFAULTS: dict[str, tuple[int | None, int | None, int | None, bool, bool]] = {
    "llama": (1, 2, 0, True, False),
    "t5": (None, 1, 2, False, True),
    "gpt2": (None, None, None, False, False),
}
ALWAYS_BOS = ("gemma4",)  # llama.cpp adds bos, whatever the file says: early files have false


@dataclass(frozen=True, slots=True)
class Vocab:
    """The vocabulary of a file. `add_ends`: whether bos is added before a text, and eos after it."""

    meta: Metadata
    tokens: list[str]
    types: Sequence[float]
    bos: Any
    eos: Any
    unknown: Any
    add_ends: tuple[bool, bool]

    def ids(self) -> dict[str, int]:
        """The id of each token. Raises BU231 if two tokens have the same text."""
        ids = {token: index for index, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            raise broken(self.meta, "has a token twice")
        return ids

    def scores(self) -> list[float]:
        """The score of each token. Raises BU231 if they are missing, or not finite."""
        scores = numbers(self.meta, "scores")
        if len(scores) != len(self.tokens) or not all(abs(score) < math.inf for score in scores):
            raise broken(self.meta, "does not have one finite score for each token")
        return scores

    def merges(self) -> list[list[str]]:
        """The pairs of tokens that are merged, in order. Raises BU231 if the result of one is not a token."""
        ids, merges = self.ids(), [merge.split(" ") for merge in strings(self.meta, "merges")]
        if not all(len(pair) == 2 and pair[0] + pair[1] in ids for pair in merges):
            raise broken(self.meta, "has a merge whose result is not a token")
        return merges

    def unknown_token(self) -> str | None:
        """The token for text that no other token represents, if there is one."""
        known = type(self.unknown) is int and 0 <= self.unknown < len(self.tokens)
        return self.tokens[self.unknown] if known else None

    def added(self) -> list[dict[str, Any]]:
        """The tokens that are matched in a text before it is split."""
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": index, "content": self.tokens[index], **plain, "special": kind == CONTROL}
            for index, kind in enumerate(self.types)
            if kind in (CONTROL, USER_DEFINED) and self.tokens[index]
        ]


def read_vocab(meta: Metadata) -> Vocab:
    """The vocabulary of a file. Raises BU221 for metadata of another type, BU231 for an invalid vocabulary."""
    bos, eos, unknown, add_bos, add_eos = DEFAULTS.get(str(meta.scalar("tokenizer.ggml.model")), DEFAULTS["gpt2"])
    if pre := PRE.get(str(meta.scalar("tokenizer.ggml.pre"))):
        add_bos = add_bos or pre.add_bos
    always_bos = meta.scalar("tokenizer.ggml.model") in ALWAYS_BOS
    tokens = strings(meta, "tokens")
    has_types = "tokenizer.ggml.token_type" in meta
    types: Sequence[float] = numbers(meta, "token_type") if has_types else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise broken(meta, f"has {len(tokens)} tokens and {len(types)} token types")

    def stated(key: str, otherwise: Any) -> Any:
        return meta.scalar(f"tokenizer.ggml.{key}", otherwise)

    return Vocab(
        meta=meta,
        tokens=tokens,
        types=types,
        bos=stated("bos_token_id", bos),
        eos=stated("eos_token_id", eos),
        unknown=stated("unknown_token_id", unknown),
        add_ends=(always_bos or stated("add_bos_token", add_bos) is True, stated("add_eos_token", add_eos) is True),
    )


def strings(meta: Metadata, key: str) -> list[str]:
    """A list of texts, `tokenizer.ggml.{key}`. Raises BU231 if it is missing or has another type."""
    values = meta.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise broken(meta, f"has no list of strings `tokenizer.ggml.{key}`")
    return values  # pyright: ignore[reportUnknownVariableType]  a GGUF array has one element type


def numbers(meta: Metadata, key: str) -> list[float]:
    """A list of numbers, `tokenizer.ggml.{key}`. Raises BU231 if it is missing or has another type."""
    values = meta.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or isinstance(values[0], str):
        raise broken(meta, f"has no list of numbers `tokenizer.ggml.{key}`")
    return values  # pyright: ignore[reportUnknownVariableType]  a GGUF array has one element type


def broken(meta: Metadata, why: str) -> BringupError:
    """BU231 for the vocabulary of a GGUF file."""
    help = "convert the model again, or pass its tokenizer.json: --tokenizer FILE, or in the folder of the weights"
    return fail("BU231", f"the tokenizer in `{meta.path}` {why}", help=help, file=str(meta.path))


def unsupported(meta: Metadata, what: str) -> BringupError:
    """BU232 for the tokenizer of a GGUF file."""
    return fail(
        "BU232",
        f"`{meta.path}` has {what}",
        help="pass the model's own tokenizer.json: --tokenizer FILE, or in the folder of this file",
        file=str(meta.path),
    )
