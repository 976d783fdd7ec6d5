"""Decoding where a vocabulary has a token for each byte (`<0x00>` … `<0xFF>`) besides its pieces.

The `tokenizers` package turns a whole run of byte tokens into U+FFFD when any of it is no UTF-8, and so takes back
characters that were right. SentencePiece, whose fallback this is, writes U+FFFD for the wrong bytes alone; so do we.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what undecodable bytes become


@dataclass(frozen=True, slots=True)
class Fallback:
    """The byte of each byte token, where the decoder knows of any; and the special tokens, which may be skipped."""

    bytes: dict[int, int]
    special: frozenset[int]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> Fallback:
        known = backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__()
        ids = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256 if known else 0))
        special = (number for number, token in backend.get_added_tokens_decoder().items() if token.special)
        return cls({number: byte for number, byte in ids if number is not None}, frozenset(special))

    def decode(self, backend: tokenizers.Tokenizer, ids: list[int], skip_special: bool) -> str:
        """The text of ids."""
        shown = [number for number in ids if not (skip_special and number in self.special)]
        wrong = self._wrong(shown)
        if not wrong:
            return backend.decode(ids, skip_special_tokens=skip_special)
        tokens = [REPLACEMENT if at in wrong else backend.id_to_token(number) for at, number in enumerate(shown)]
        return backend.decoder.decode([token for token in tokens if token is not None])

    def _wrong(self, ids: list[int]) -> set[int]:
        """Where in `ids` byte tokens stand that are part of no character."""
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
    """The places of bytes that are part of no character."""
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
