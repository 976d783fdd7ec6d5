"""Tokenizer files that are wrong or bombs: each is one coded error, and what it costs is bounded."""

from __future__ import annotations

import base64
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup.compile.text.tokenizer import load_tokenizer
from tests.adapters.gguf_files import file_of, pair, text
from tests.adapters.written import raises
from tests.compile.tokenizer_files import write_tokenizer

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
PLAIN: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": BPE}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def table(data: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def special(**template: Any) -> dict[str, Any]:
    piece = {"SpecialToken": {"id": "zz", "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [piece], "pair": [], "special_tokens": {}} | template


GROW = {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 50}
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "no model": ("BU231", {"model": None}),
    "a model that is none": ("BU231", {"model": {"type": "Nonsense"}}),
    "vocab of the wrong type": ("BU231", {"model": BPE | {"vocab": ["a"]}}),
    "ids of the wrong type": ("BU231", {"model": BPE | {"vocab": {"a": "0"}}}),
    "negative ids": ("BU231", {"model": BPE | {"vocab": {"a": -1}}}),
    "ids of 2^64": ("BU231", {"model": BPE | {"vocab": {"a": 2**64}}}),
    "one id twice": ("BU231", {"model": BPE | {"vocab": {"a": 0, "b": 0, "ab": 1}}}),
    "merges of what is no token": ("BU231", {"model": BPE | {"merges": [["a", "zz"]]}}),
    "merges that make no token": ("BU231", {"model": BPE | {"merges": [["b", "a"]]}}),
    "merges of the wrong type": ("BU231", {"model": BPE | {"merges": [1]}}),
    "unknown id outside": ("BU231", {"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}}),
    "scores of the wrong type": ("BU231", {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", "x"]]}}),
    "added token of the wrong type": ("BU231", {"added_tokens": [3]}),
    "added token with a negative id": ("BU231", {"added_tokens": [{"id": -1, "content": "q", **ADDED}]}),
    "a regex that is none": ("BU231", {"pre_tokenizer": split("(")}),
    "a regex that is deep": ("BU231", {"pre_tokenizer": split("(" * 9000 + "a" + ")" * 9000)}),
    "a regex bomb": ("BU231", {"pre_tokenizer": split("(a+)+$")}),
    "a regex bomb in a normalizer": ("BU231", {"normalizer": GROW | {"pattern": {"Regex": "(a|aa)+$"}}}),
    "a text that grows and grows": ("BU226", {"normalizer": {"type": "Sequence", "normalizers": [GROW] * 5}}),
    "a table of normal forms that is none": ("BU231", {"normalizer": table(b"\x08\0\0\0" + b"\xff" * 8 + b"abc")}),
    "a table with a length of 4 GB": ("BU226", {"normalizer": table(b"\xff" * 4)}),
    "a special token that is not there": ("BU231", {"post_processor": special()}),
    "stripped of more than there is": ("BU231", {"decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 9}}),
    "deep steps": ("BU231", {"pre_tokenizer": json.loads('{"type":"Sequence","pretokenizers":[' * 200 + "]}" * 200)}),
}


@pytest.fixture
def frugal(request: pytest.FixtureRequest) -> Any:
    """This process itself takes little of either; the process where a file is tried has limits."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("name", FILES)
def test_hostile_json(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str], frugal: None) -> None:
    code, changes = FILES[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN | changes))
    with raises(code, "tokenizer.json"):
        load_tokenizer(tmp_path)
    assert capfd.readouterr().err == ""  # no panic's backtrace


def test_hostile_json_is_valid_but_for_its_fault(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    assert load_tokenizer(tmp_path).encode("ab") == [2]


BYTES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no UTF-8": lambda: b"\xff\xfe",
    "no JSON": lambda: b"{" * 10,
    "deep lists": lambda: b"[" * 10**6,
    "deep objects": lambda: b'{"a":' * 10**6,
    "a deep part": lambda: json.dumps(PLAIN).encode()[:-1] + b',"x":' + b"[" * 10**6 + b"]" * 10**6 + b"}",
    "a list of numbers": lambda: b"[" + b"1," * 5_000_000 + b"1]",
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES)
def test_hostile_bytes(tmp_path: Path, name: str, frugal: None) -> None:
    (tmp_path / "tokenizer.json").write_bytes(BYTES[name]())
    with raises("BU231", "tokenizer.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("linked", [False, True])
def test_gguf_named_tokenizer_json(tmp_path: Path, linked: bool) -> None:
    """Its folder has no tokenizer.json but itself, under whatever name it is given."""
    header = file_of(keys=(pair("tokenizer.ggml.model", 8, text("nonsense")),))
    file = tmp_path / "tokenizer.json"
    file.write_bytes(header)
    if linked:
        (tmp_path / "model.gguf").symlink_to(file)
        file = tmp_path / "model.gguf"
    with raises("BU231", "has no list of strings `tokenizer.ggml.tokens`"):
        load_tokenizer(file, trusted=True)


def test_a_file_of_10_gb(tmp_path: Path, frugal: None) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
        with (tmp_path / name).open("wb") as file:
            file.truncate(10 << 30)
        with raises("BU231", f"{name}.*MiB"):
            load_tokenizer(tmp_path, trusted=True)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize(
    "content", [b"[" * 10**6, b"{", b"[]", b"\xff", b'{"a":1,"a":2}', b'{"a":' + b"9" * 5000 + b"}"]
)
def test_hostile_sidecar_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    (tmp_path / name).write_bytes(content)
    with raises("BU231", name):
        load_tokenizer(tmp_path, trusted=True)


def test_sidecar_words_of_any_type(tmp_path: Path) -> None:
    """Ids and tokens that are none are no stop tokens."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    for value in (None, True, 1.5, -1, "a", [], [[1]], {"content": 3}, [None, "a", True, -2], 2**70):
        words = {"eos_token_id": value, "eos_token": value, "chat_template": value if value != "a" else None}
        for name in ("tokenizer_config.json", "generation_config.json"):
            (tmp_path / name).write_text(json.dumps(words))
        tokenizer = load_tokenizer(tmp_path, trusted=True)
        assert tokenizer.eos <= {0, 2**70}
        assert tokenizer.chat is None


def test_pipes_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with raises("BU231"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    for name in ("tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        os.mkfifo(tmp_path / name)
    assert load_tokenizer(tmp_path).chat is None


GGUF = {"model": "llama", "tokens": ["<unk>", "<s>", "</s>", "a"], "scores": [0.0, 0.0, 0.0, -1.0]}
METADATA: dict[str, tuple[str, dict[str, Any]]] = {
    "one long piece": ("BU231", {"tokens": ["<unk>", "<s>", "</s>", "a" * 10**6]}),
    "many long pieces": (
        "BU231",
        {"tokens": [f"{at:01000}" for at in range(9000)], "scores": [0.0] * 9000},
    ),
    "a token twice": ("BU231", {"tokens": ["a", "a", "b", "c"]}),
    "more scores than tokens": ("BU231", {"scores": [0.0] * 5}),
    "infinite scores": ("BU231", {"scores": [0.0, 0.0, 0.0, float("inf")]}),
    "types of the wrong type": ("BU231", {"token_type": ["a", "b", "c", "d"]}),
    "tokens are numbers": ("BU231", {"tokens": [1, 2, 3, 4]}),
    "tokens are one text": ("BU231", {"tokens": "abcd"}),
    "the model is a list": ("BU221", {"model": [1, 2]}),
    "the template is a list": ("BU221", {"tokenizer.chat_template": ["a"]}),
    "bytes that are none": ("BU231", {"model": "t5", "precompiled_charsmap": [300, 4, 5]}),
    "no unknown token": ("BU231", {"model": "t5", "unknown_token_id": 99}),
}


@pytest.mark.parametrize("name", METADATA)
def test_hostile_metadata(tmp_path: Path, name: str, frugal: None) -> None:
    code, changes = METADATA[name]
    file = write_tokenizer(tmp_path / "m.gguf", GGUF | changes)
    with raises(code, "m.gguf"):
        load_tokenizer(file)


@pytest.mark.parametrize("charsmap", [[300, 4, 5], [-129, 0], [1.5, 2.0]], ids=str)
def test_a_charsmap_is_bytes(tmp_path: Path, charsmap: list[Any]) -> None:
    file = write_tokenizer(tmp_path / "m.gguf", GGUF | {"model": "t5", "precompiled_charsmap": charsmap})
    with raises("BU231", "has a `precompiled_charsmap` whose values are not bytes"):
        load_tokenizer(file)


def test_hostile_metadata_is_valid_but_for_its_fault(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "m.gguf", GGUF))
    assert tokenizer.encode("a") == [1, 0, 3]
