"""The places of tokens in an answer, if the bytes of a character are those of several tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

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


def places_by_bytes(pieces: Sequence[bytes]) -> list[int]:
    """The character of each token's first byte: the characters of all bytes up to this one, less one."""
    starts = itertools.accumulate(map(len, pieces), initial=0)
    return [len(b"".join(pieces)[: start + 1].decode("utf-8", "replace")) - 1 for start in [*starts][:-1]]


def test_tokens_of_several_bytes():
    """Tokens that end one character and begin the next, as vocabularies have; also if neither is complete."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"\xa5\xe6\x9c\xac\xe8", b"\x9f\x98", b"\xac\xe8", b" \xf0\x9f"]
    pieces += [b"\x80b", "é".encode(), b"the", b"\xa8\xc3\xbc"]
    letters = {byte: letter for letter, byte in _byte_letters().items()}
    vocabulary = {"".join(letters[byte] for byte in piece): at for at, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    draw = random.Random(1)
    leads = [at for at, piece in enumerate(pieces) if piece[0] >= 0x80]
    for _ in range(2000):
        tokens = [draw.choice(leads if draw.random() < 0.8 else range(len(pieces))) for _ in range(draw.randint(1, 7))]
        chosen = [pieces[token] for token in tokens]
        echo = echo_of("", tokens, Tokenizer(backend, frozenset()).stream(skip_special=True))
        assert echo.text == b"".join(chosen).decode("utf-8", "replace")
        assert list(echo.offsets) == places_by_bytes(chosen), chosen


def test_many_bytes_that_are_no_utf8_take_no_more_time_each():
    """The text of the first ones is final while more arrive, so the number of tokens that are decoded is bounded."""
    draw = random.Random(2)
    for _ in range(20):
        parts = [draw.choice([b"\x80", b"\xff", b"\xf0\x9f", b"\xe6"]) for _ in range(300)]
        parts[200:200] = ["\N{PARTY POPPER}".encode()]
        text = b"".join(parts)
        decoded: list[int] = []

        def decode(ids: list[int], *, skip_special: bool, into: list[int] = decoded) -> str:
            into.append(len(ids))
            return bytes(ids).decode("utf-8", "replace")

        answer, found, written = Answer(Stream(decode), ()), list[Scored](), ""
        for at, byte in enumerate(text):
            piece = answer.push(Update(byte, "length" if at == len(text) - 1 else None, score=Score(byte, 0.0, ())))
            written += piece.text
            found += piece.tokens
        assert written == text.decode("utf-8", "replace")
        assert [each.token for each in found] == list(text)
        assert [each.offset for each in found] == places_by_bytes([bytes([byte]) for byte in text])
        assert max(decoded) < 100


SPECIAL = 256


@pytest.mark.parametrize(
    ("tokens", "text", "places"),
    [
        ([*b"a\xf0", SPECIAL, *b"\x9f\x8e\x89b"], "a\U0001f389b", [0, 1, 1, 1, 1, 1, 2]),
        ([0xE6, SPECIAL, SPECIAL, 0x97], "\ufffd", [0, 0, 0, 0]),
        ([0xE6, SPECIAL, *b"b"], "\ufffdb", [0, 1, 1]),
        ([SPECIAL, *b"ab", SPECIAL], "ab", [0, 0, 1, 2]),
    ],
)
def test_a_special_token_between_the_bytes_of_a_character(tokens: list[int], text: str, places: list[int]):
    """Every token is listed once, in order, and places never decrease."""
    backend = tokenizers.Tokenizer(BPE({letter: byte for letter, byte in _byte_letters().items()}, []))
    backend.decoder = decoders.ByteLevel()
    assert backend.add_special_tokens(["<special>"]) == 1
    assert backend.token_to_id("<special>") == SPECIAL
    decoder = Tokenizer(backend, frozenset())
    assert echo_of("", tokens, decoder.stream(skip_special=True)).offsets == places
    answer = Answer(decoder.stream(skip_special=True), ["never"])
    pieces = [
        answer.push(Update(token, "length" if at == len(tokens) - 1 else None, score=Score(token, 0.0, ())))
        for at, token in enumerate(tokens)
    ]
    assert "".join(piece.text for piece in pieces) == text
    assert [(each.token, each.offset) for piece in pieces for each in piece.tokens] == [
        *zip(tokens, places, strict=True)
    ]


def test_a_stop_string_after_an_incomplete_character():
    """The token of the incomplete character is in the answer, that of the stop string is not."""
    answer = Answer(stream(), ["b"])
    pieces = [answer.push(Update(byte, score=Score(byte, 0.0, ()))) for byte in b"a\xe6b"]
    assert "".join(piece.text for piece in pieces) == "a\ufffd"
    assert [(each.token, each.offset) for piece in pieces for each in piece.tokens] == [(0x61, 0), (0xE6, 1)]
    assert answer.ending == "stop"


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize(
    ("pieces", "stop", "count", "text"),
    [
        ([b"ab\xf0", b"\x9f", b"\x8e", b"\x89"], "b", 1, "a"),  # the rest of the character is not needed
        ([b"a", b"\xe6", b"\x97", b"\xa5b\xe6", b"\x98"], "日b", 4, "a"),
        ([b"\xe6b\xe6", b"\x97\xa5"], "b", 1, "\ufffd"),
        ([b"ab\xf0", b"\x9f\x8e\x89"], "b\U0001f389", 2, "a"),  # the stop string has the character
        ([b"ab\xf0", b"\x9f\x8e\x89"], "c", 2, "ab\U0001f389"),
    ],
)
def test_the_tokens_of_a_stop_string_before_an_incomplete_character(
    pieces: list[bytes], stop: str, count: int, text: str, scored: bool
):
    letters = {byte: letter for letter, byte in _byte_letters().items()}
    vocabulary = {"".join(letters[byte] for byte in piece): at for at, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    answer, written = Answer(Tokenizer(backend, frozenset()).stream(skip_special=True), [stop]), ""
    for token in range(len(pieces)):
        reason = "length" if token == len(pieces) - 1 else None
        written += answer.push(Update(token, reason, score=Score(token, 0.0, ()) if scored else None)).text
        if answer.ending:
            break
    assert (answer.tokens, written) == (count, text)
    assert answer.ending == ("length" if stop == "c" else "stop")
