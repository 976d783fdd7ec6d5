"""Decoding of vocabularies that have a token for each byte (`<0x00>` … `<0xFF>`) besides their pieces.

The `tokenizers` package decodes a complete run of byte tokens to U+FFFD if any byte of it is not UTF-8, and so loses
valid characters. SentencePiece, which defines this fallback, writes U+FFFD only for the invalid bytes; so do we.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # written for undecodable bytes


@dataclass(frozen=True, slots=True)
class Fallback:
    """The byte of each byte token, if the decoder has byte fallback; and the special tokens, which may be skipped."""

    bytes: dict[int, int]
    special: frozenset[int]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> Fallback:
        """The fallback of a tokenizer of the `tokenizers` package."""
        known = backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__()
        ids = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256 if known else 0))
        special = (number for number, token in backend.get_added_tokens_decoder().items() if token.special)
        return cls({number: byte for number, byte in ids if number is not None}, frozenset(special))

    def decode(self, backend: tokenizers.Tokenizer, ids: list[int], skip_special: bool) -> str:
        """The text of token ids, without special tokens if `skip_special`."""
        shown = [number for number in ids if not (skip_special and number in self.special)]
        wrong = self._wrong(shown)
        if not wrong:
            return backend.decode(ids, skip_special_tokens=skip_special)
        tokens = [REPLACEMENT if at in wrong else backend.id_to_token(number) for at, number in enumerate(shown)]
        return backend.decoder.decode([token for token in tokens if token is not None])

    def _wrong(self, ids: list[int]) -> set[int]:
        """The indices in `ids` of byte tokens that are part of no character."""
        wrong: set[int] = set()
        start = 0
        while start < len(ids):
            end = start
            while end < len(ids) and ids[end] in self.bytes:
                end += 1
            run = bytes(self.bytes[number] for number in ids[start:end])
            wrong |= {start + at for at in _not_utf8(run)}
            start = end + 1
        return wrong


def _not_utf8(data: bytes) -> set[int]:
    """The indices of bytes that are part of no UTF-8 character."""
    wrong: set[int] = set()
    start = 0
    while True:
        try:
            data[start:].decode()
        except UnicodeDecodeError as error:
            wrong.add(start + error.start)
            start += error.start + 1
        else:
            return wrong
