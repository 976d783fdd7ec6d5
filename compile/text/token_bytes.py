"""The bytes of single tokens, whose concatenation is the bytes of an answer's text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer


class TokenBytes:
    """The bytes of the tokens of one tokenizer; each token is decoded once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder: Any = tokenizer.backend.decoder
        self._by_letter = _byte_letters() if decoder and _has(json.loads(decoder.__getstate__()), "ByteLevel") else {}
        self._added = tokenizer.backend.get_added_tokens_decoder()
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        """The bytes of a token id; empty for an id without a token, because vocabularies of programs are padded."""
        if token not in self._known:
            self._known[token] = self._bytes(token)
        return self._known[token]

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].content.encode()
        byte = self._tokenizer.fallback.bytes.get(token)
        if byte is not None:
            return bytes([byte])
        written = self._tokenizer.backend.id_to_token(token)
        if written is None:
            return b""
        if self._by_letter and all(letter in self._by_letter for letter in written):
            return bytes(self._by_letter[letter] for letter in written)
        return self._behind_itself(token).encode()

    def _behind_itself(self, token: int) -> str:
        """The text of the token when it is not the first: decoders treat the first token of a text differently."""
        return self._tokenizer.decode([token, token])[len(self._tokenizer.decode([token])) :]


def _has(decoder: Any, kind: str) -> bool:
    """Whether a decoder, or one of a sequence, is of a kind."""
    return decoder.get("type") == kind or any(_has(each, kind) for each in decoder.get("decoders", ()))


def _byte_letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary represents.

    Bytes that are printable in Latin-1 are represented by themselves, the others by letters from U+0100 on, in order:
    `bytes_to_unicode` of GPT-2 (Radford et al. 2019).
    """
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}
