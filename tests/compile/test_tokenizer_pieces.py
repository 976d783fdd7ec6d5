"""SentencePiece models in GGUF. The `sentencepiece` package is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GemmaTokenizer

from bringup.compile.text.tokenizer import Tokenizer, load_tokenizer
from tests.adapters.written import raises
from tests.compile.tokenizer_files import TEXTS, charsmap, pieces, pieces_gguf, sentences, write_tokenizer

BOS, EOS = 1, 2


def loaded(kind: str, folder: Path, **changes: Any) -> Tokenizer:
    model = {"bpe": "llama", "unigram": "t5"}[kind]
    return load_tokenizer(pieces_gguf(pieces(kind), model, folder / f"{kind}.gguf", **changes), trusted=True)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return loaded(kind, tmp_path_factory.mktemp("gguf"))


def plain(text: str) -> bool:
    """No token of the vocabulary that is matched whole stands in it: SentencePiece does not read those in a text."""
    return not any(token in text for token in ("<s>", "</s>", "<unk>"))


@pytest.mark.parametrize("text", TEXTS)
def test_the_ids_and_the_text(kind: str, tokenizer: Tokenizer, text: str) -> None:
    truth = pieces(kind)
    ids = tokenizer.encode(text, whole=False)
    assert ids == truth.encode(text)
    assert tokenizer.decode(ids) == truth.decode(ids)


@settings(deadline=None, max_examples=100)
@given(text=st.text().filter(plain))
def test_the_ids_and_the_text_of_anything(kind: str, tokenizer: Tokenizer, text: str) -> None:
    truth = pieces(kind)
    ids = tokenizer.encode(text, whole=False)
    assert ids == truth.encode(text)
    assert tokenizer.decode(ids) == truth.decode(ids)


@settings(deadline=None, max_examples=100)
@given(ids=st.lists(st.integers(0, 519) | st.integers(3, 258), max_size=30), skip=st.booleans())
def test_streamed_pieces_make_up_the_text(kind: str, tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    """Any ids: half of them are bytes, mostly no UTF-8."""
    stream = tokenizer.stream(skip_special=skip)
    streamed = [stream.push(number) for number in ids]
    assert "".join(streamed) + stream.finish() == tokenizer.decode(ids, skip_special=skip)


@settings(deadline=None, max_examples=100)
@given(ids=st.lists(st.integers(3, 519) | st.integers(3, 258), max_size=30))
def test_the_text_of_any_ids(kind: str, tokenizer: Tokenizer, ids: list[int]) -> None:
    """Wrong bytes become U+FFFD one by one, and right ones beside them stay. Control tokens are skipped over.

    SentencePiece takes away every space before the first character, we the one that was put there.
    """
    truth = pieces(kind).decode(ids)
    assert tokenizer.decode(ids, skip_special=True).lstrip(" ") == truth.lstrip(" ")


@pytest.mark.parametrize("text", TEXTS)
def test_no_half_character_is_streamed(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    ids = tokenizer.encode(text, whole=False)
    streamed = [stream.push(number) for number in ids]
    assert "".join(streamed) == tokenizer.decode(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in streamed)


def test_a_wrong_byte_does_not_take_right_ones_with_it(tokenizer: Tokenizer, kind: str) -> None:
    """tokenizers' own decoder gives seven times U+FFFD."""
    ids = [3 + byte for byte in "é".encode() + b"\xff" + "☕".encode() + b"\xc3"]
    assert tokenizer.decode(ids) == "é\ufffd☕\ufffd" == pieces(kind).decode(ids)
    stream = tokenizer.stream()
    assert [stream.push(number) for number in ids] == ["", "é", "", "", "", "\ufffd☕", ""]
    assert stream.finish() == "\ufffd"


def test_what_is_put_around_a_text(tmp_path: Path) -> None:
    """llama.cpp's defaults, and the file's flags over them."""
    words = pieces("bpe").encode("Hello")
    cases = {
        "bpe": [({}, [BOS, *words]), ({"add_bos_token": False}, words), ({"add_eos_token": True}, [BOS, *words, EOS])],
        "unigram": [({}, [*pieces("unigram").encode("Hello"), EOS])],
    }
    for kind, wanted in cases.items():
        for changes, ids in wanted:
            assert loaded(kind, tmp_path, **changes).encode("Hello") == ids


def test_no_space_is_put_before_a_text_when_the_file_says_so(tmp_path: Path) -> None:
    truth = pieces("bpe", add_dummy_prefix=False)
    file = pieces_gguf(truth, "llama", tmp_path / "m.gguf", add_space_prefix=False)
    tokenizer = load_tokenizer(file, trusted=True)
    for text in TEXTS:
        ids = tokenizer.encode(text, whole=False)
        assert ids == truth.encode(text)
        assert tokenizer.decode(ids) == truth.decode(ids) == text.replace("\u2581", " ")


@pytest.fixture(scope="module")
def gemma() -> GemmaTokenizer:
    """A small tokenizer of Gemma's kind, with merges of its own, learned from whole lines."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=specials, show_progress=False, limit_alphabet=150, max_token_length=9
    )
    backend.train_from_iterator([f"{line}\n\n" for line in sentences()], trainer)
    model = json.loads(backend.to_str())["model"]
    return GemmaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def gemma_gguf(gemma: GemmaTokenizer, path: Path, **changes: Any) -> Path:
    """As `Gemma4Model.set_vocab` of llama.cpp's converter writes it."""
    model = json.loads(gemma.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    values = {
        "model": "gemma4",
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in model["merges"]],
        "scores": [-1000.0] * len(tokens),
        "token_type": [3 if at < 5 else 6 if at < 261 else 1 for at in range(len(tokens))],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
    }
    return write_tokenizer(path, values | changes)


def test_listed_merges_are_gemma_4_s(gemma: GemmaTokenizer, tmp_path: Path) -> None:
    """transformers' tokenizer is the oracle, for newlines too, of which the vocabulary has several in one token."""
    ours = load_tokenizer(gemma_gguf(gemma, tmp_path / "m.gguf", add_space_prefix=None), trusted=True)
    texts = [*TEXTS, "one\n\n\ntwo \n \n\n", "<bos>a<eos> b"]
    assert any("\n\n" in token for token in gemma.get_vocab())
    for text in texts:
        ids = ours.encode(text, whole=False)
        assert ids == gemma.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == text.replace("\u2581", " ")


def test_gemma_4_begins_with_bos_whatever_a_file_says(gemma: GemmaTokenizer, tmp_path: Path) -> None:
    """So does llama.cpp (pull request 21500)."""
    for changes in ({}, {"add_bos_token": False}):
        ours = load_tokenizer(gemma_gguf(gemma, tmp_path / "m.gguf", **changes), trusted=True)
        assert ours.encode("Hello") == [2, *gemma.encode("Hello", add_special_tokens=False)]


def test_tokens_that_are_matched_whole(tmp_path: Path) -> None:
    """Control and user-defined ones; what stands between them is encoded as a text of its own, as llama.cpp does."""
    truth = pieces("bpe")
    kinds = [3 if at in (BOS, EOS) else 6 if 3 <= at < 259 else 2 if at == 0 else 1 for at in range(520)]
    tokens = [truth.id_to_piece(at) for at in range(520)]
    tokens[500], kinds[500] = "[INST]", 3
    tokens[501], kinds[501] = "<think>", 4
    tokenizer = loaded("bpe", tmp_path, tokens=tokens, token_type=kinds)
    ids = tokenizer.encode("<s>[INST] Hi there<think>so </s>", whole=False)
    assert ids == [BOS, 500, *truth.encode(" Hi there"), 501, *truth.encode("so "), EOS]
    assert tokenizer.decode(ids, skip_special=True) == " Hi there<think> so "


def test_characters_without_a_piece_or_bytes(tmp_path: Path) -> None:
    """Neighbours become one unknown token."""
    truth = pieces("bpe", byte_fallback=False)
    tokenizer = load_tokenizer(pieces_gguf(truth, "llama", tmp_path / "m.gguf"), trusted=True)
    for text in TEXTS:
        assert tokenizer.encode(text, whole=False) == truth.encode(text), text


def test_a_normalizing_model(tmp_path: Path) -> None:
    """T5's own way: NFKC from a table in the file, and no spaces beyond one."""
    truth = pieces("unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
    changes = {"precompiled_charsmap": charsmap(truth), "remove_extra_whitespaces": True}
    tokenizer = load_tokenizer(pieces_gguf(truth, "t5", tmp_path / "m.gguf", **changes), trusted=True)
    for text in TEXTS:
        assert tokenizer.encode(text, whole=False) == truth.encode(text), text


@pytest.mark.parametrize(
    ("code", "changes", "match"),
    [
        ("BU231", {"scores": None}, "scores"),
        ("BU231", {"scores": [1.0, 2.0]}, "score"),
        ("BU231", {"scores": [float("nan")] * 520}, "score"),
        ("BU231", {"tokens": ["a"] * 520}, "twice"),
        ("BU231", {"tokens": [1, 2]}, "tokens"),
        ("BU231", {"token_type": "normal"}, "token_type"),
        ("BU231", {"bos_token_id": 520}, "beginning"),
        ("BU231", {"add_eos_token": True, "eos_token_id": 520}, "end of a text"),
        ("BU221", {"bos_token_id": [1, 2]}, "is an array"),
        ("BU232", {"model": "bert"}, "model `bert`"),
        ("BU232", {"model": "rwkv"}, "model `rwkv`"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, code: str, changes: dict[str, Any], match: str) -> None:
    with raises(code, match):
        loaded("bpe", tmp_path, **changes)
