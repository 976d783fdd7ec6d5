"""The bytes of single tokens, one after the other, against the text's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from bringup.compile.text.token_bytes import TokenBytes
from bringup.compile.text.tokenizer import Tokenizer, load_tokenizer
from tests.compile.bpe import trained
from tests.compile.tokenizer_files import TEXTS, pieces, pieces_gguf

BYTES = 256


@pytest.mark.parametrize("text", [*TEXTS, "naïve café — 日本語 🙂‍↔️\n\tend"])
def test_of_byte_level_vocabularies_they_make_up_the_text(text: str) -> None:
    tokenizer = Tokenizer(trained("gpt-2"), frozenset())
    bytes_of = TokenBytes(tokenizer)
    assert b"".join(map(bytes_of, tokenizer.encode(text, whole=False))) == text.encode()


def test_each_letter_of_a_byte_level_vocabulary_is_one_byte() -> None:
    tokenizer = Tokenizer(trained("gpt-2"), frozenset())
    letters = [tokenizer.backend.token_to_id(each) for each in tokenizers.pre_tokenizers.ByteLevel.alphabet()]
    bytes_of = TokenBytes(tokenizer)
    assert sorted(bytes_of(token) for token in letters if token is not None) == [bytes([n]) for n in range(BYTES)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_of_sentencepiece_they_make_up_the_text_behind_another(kind: str, tmp_path: Path) -> None:
    model = {"bpe": "llama", "unigram": "t5"}[kind]
    truth = pieces(kind)
    tokenizer = load_tokenizer(pieces_gguf(truth, model, tmp_path / "pieces.gguf"), trusted=True)
    bytes_of = TokenBytes(tokenizer)
    for text in ("the cat sat", "a 🙂 b"):
        ids = truth.encode(text)
        assert b"".join(map(bytes_of, ids)).decode().strip() == truth.decode(ids)
    number = truth.piece_to_id("<0xE2>")
    assert bytes_of(number) == b"\xe2"


def test_what_no_decoder_joins_is_joined_by_blanks() -> None:
    backend = tokenizers.Tokenizer(WordLevel({"w0": 0, "w1": 1, "<eos>": 2}, unk_token="w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens(["<eos>"])
    bytes_of = TokenBytes(Tokenizer(backend, frozenset({2})))
    assert [bytes_of(token) for token in (0, 1, 2, 9)] == [b" w0", b" w1", b"<eos>", b""]
