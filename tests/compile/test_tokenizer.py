"""Tokenizers from tokenizer.json, and streaming. The `tokenizers` package is the oracle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from bringup.compile.text.chat import Chat
from bringup.compile.text.tokenizer import Tokenizer, load_tokenizer, to_folder
from bringup.diagnostics import BringupError
from tests.adapters.written import raises
from tests.compile.bpe import trained
from tests.compile.tokenizer_files import TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = trained("gpt-2")
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({}, set()),
        ({"config.json": {"eos_token_id": 7}}, {7}),
        ({"config.json": {"eos_token_id": 7}, "generation_config.json": {"eos_token_id": [8, 9]}}, {8, 9}),
        ({"config.json": {"eos_token_id": None}, "generation_config.json": {"bos_token_id": 1}}, set()),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}}, {2}),
        ({"tokenizer_config.json": {"eos_token": {"content": "<|im_end|>"}}}, {2}),
        ({"tokenizer_config.json": {"eos_token": "<|im_end|>"}, "config.json": {"eos_token_id": 0}}, {0, 2}),
    ],
)
def test_where_eos_is_said(tmp_path: Path, folder: Path, files: dict[str, object], eos: set[int]) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    for name, words in files.items():
        (tmp_path / name).write_text(json.dumps(words))
    assert load_tokenizer(tmp_path / "tokenizer.json").eos == eos


def test_saved_truncation_and_padding_do_not_count(folder: Path) -> None:
    text = "a text of more than five tokens, surely"
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("surrogate", [0xD800, 0xDFFF, 0xDC80])  # the last one represents the byte 0x80
def test_invalid_unicode_becomes_a_replacement_character(folder: Path, surrogate: int) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode(f"a{chr(surrogate)}b") == tokenizer.encode("a\N{REPLACEMENT CHARACTER}b")


def test_to_folder_and_back(tmp_path: Path, folder: Path) -> None:
    tokenizer = Tokenizer(
        load_tokenizer(folder).backend, frozenset({2, 0}), Chat("{{ bos_token }}\r\né", {"bos_token": "<|a|>"})
    )
    to_folder(tokenizer, tmp_path / "new")
    again = load_tokenizer(tmp_path / "new")
    assert again.eos == {0, 2}
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert again.chat == tokenizer.chat


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": {"type": "Nonsense"}}'])
def test_files_that_are_no_tokenizer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with raises("BU231", "tokenizer.json"):
        load_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with raises("BU231", "no tokenizer"):
        load_tokenizer(tmp_path)


# --- streaming


@pytest.fixture(scope="module")
def stream_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 600), max_size=40), skip=st.booleans())
def test_streamed_pieces_make_up_the_text(stream_tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    """Any ids, valid UTF-8 or not."""
    stream = stream_tokenizer.stream(skip_special=skip)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == stream_tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("text", TEXTS)
def test_no_half_character_is_streamed(stream_tokenizer: Tokenizer, text: str) -> None:
    stream = stream_tokenizer.stream()
    pieces = [stream.push(token) for token in stream_tokenizer.encode(text)]
    assert "".join(pieces) == text  # nothing is left for `finish` when the text is whole
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert stream.finish() == ""


def test_a_decoder_that_treats_the_first_token_apart() -> None:
    """SentencePiece style: a leading space is dropped, once."""
    vocab = {"▁a": 0, "▁b": 1, "c": 2, "<0xC3>": 3, "<0xA9>": 4}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(backend, frozenset())
    stream = tokenizer.stream()
    assert [stream.push(token) for token in (0, 1, 2, 3, 4, 1)] == ["a", " b", "c", "", "é", " b"]


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle for `cpu` runs without torch, so the message names this package alone."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BringupError) as caught:
        load_tokenizer(folder, trusted=True)
    finding = caught.value.findings[0]
    assert (finding.code, finding.help) == ("BU922", "run: pip install tokenizers")
