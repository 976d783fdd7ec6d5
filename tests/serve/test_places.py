"""The places of tokens in an answer, if the bytes of a character are those of several tokens."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders
from tokenizers.models import BPE

from bringup.compile.runtime.scores import Score
from bringup.compile.serve.answer import Answer, Scored, echo_of
from bringup.compile.serve.worker import Update
from bringup.compile.text.stream import Stream
from bringup.compile.text.token_bytes import _byte_letters
from bringup.compile.text.tokenizer import Tokenizer

# The bytes of an answer, a token each, and the place of each: that of the character that it begins or continues.
CASES = [
    ("aé日🎉b".encode(), [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4]),
    (b"a\xe6b", [0, 1, 2]),  # a character that is not completed
    (b"a\xe6\x97b", [0, 1, 1, 2]),
    (b"a\xff\xffb", [0, 1, 2, 3]),  # bytes that are no UTF-8
    (b"\xe6\xe6\x97\xa5b", [0, 1, 1, 1, 2]),
    (b"ab\xf0\x9f", [0, 1, 2, 2]),  # at the end
]


def stream() -> Stream:
    """Decodes bytes, each of which is a token."""
    backend = tokenizers.Tokenizer(BPE({letter: byte for letter, byte in _byte_letters().items()}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, frozenset()).stream(skip_special=True)


@pytest.mark.parametrize(("text", "places"), CASES)
@pytest.mark.parametrize("stops", [(), ("never",), ("b\U0001f389",)])
def test_places_of_an_answer(text: bytes, places: list[int], stops: tuple[str, ...]):
    answer, found, written = Answer(stream(), stops), list[Scored](), ""
    for at, byte in enumerate(text):
        reason = "length" if at == len(text) - 1 else None
        piece = answer.push(Update(byte, reason, score=Score(byte, 0.0, ())))
        assert all(each.offset < len(written + piece.text) for each in piece.tokens)
        written += piece.text
        found += piece.tokens
    assert written == text.decode("utf-8", "replace")
    assert [each.token for each in found] == list(text)
    assert [each.offset for each in found] == places


@pytest.mark.parametrize(("text", "places"), CASES)
def test_places_of_an_echo(text: bytes, places: list[int]):
    echo = echo_of("", list(text), stream())
    assert (echo.text, list(echo.offsets)) == (text.decode("utf-8", "replace"), places)


def test_a_stop_string_after_an_incomplete_character():
    """The token of the incomplete character is in the answer, that of the stop string is not."""
    answer = Answer(stream(), ["b"])
    pieces = [answer.push(Update(byte, score=Score(byte, 0.0, ()))) for byte in b"a\xe6b"]
    assert "".join(piece.text for piece in pieces) == "a\ufffd"
    assert [(each.token, each.offset) for piece in pieces for each in piece.tokens] == [(0x61, 0), (0xE6, 1)]
    assert answer.ending == "stop"
