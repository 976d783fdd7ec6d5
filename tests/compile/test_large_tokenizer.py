"""A tokenizer of 262,144 tokens: it is built, compiled, and its like made to be slow is still refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.compile.bundle.folder import TOKENIZER
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.text.tokenizer import MOST_MEGABYTES, MOST_SECONDS, _limits, load_tokenizer
from tests.adapters.written import raises
from tests.compile.large_vocab import SIZE, large_gguf

SMALL = {
    "vocab_size": 11, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_gguf(tmp_path_factory.mktemp("large") / "m.gguf")


@pytest.mark.slow
def test_a_vocabulary_as_large_as_gemmas(file: Path) -> None:
    tokenizer = load_tokenizer(file)
    assert tokenizer.backend.get_vocab_size() == SIZE
    assert tokenizer.decode(tokenizer.encode("abcab cab", whole=False)) == "abcab cab"
    assert len(tokenizer.encode("abcabcab", whole=False)) < 5  # merged: not letter by letter


@pytest.mark.slow
def test_it_compiles(file: Path, tmp_path: Path) -> None:
    job = open_job("llama", "dummy", config=SMALL, tokenizer=str(file))
    bundle = build(job, out=tmp_path / "b", target="torch", buckets=(16,))
    tokenizer = load_tokenizer(bundle / TOKENIZER, trusted=True)
    assert tokenizer.backend.get_vocab_size() == SIZE
    assert tokenizer.eos == {1}


def test_limits_are_bounded() -> None:
    """Whatever a file says, and however many entries it has."""
    assert _limits(b"," * (64 << 20)) == (MOST_SECONDS, MOST_MEGABYTES)
    seconds, megabytes = _limits(b"{}")
    assert seconds < 1
    assert megabytes < 150


def test_a_bomb_with_a_large_vocabulary(tmp_path: Path) -> None:
    """Entries give it more memory, and still no more than the most."""
    grow = {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 50}
    words = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [grow] * 6},
        "model": {"type": "BPE", "vocab": {f"{at:x}": at for at in range(SIZE)}, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with raises("BU226", r"took over.*--tokenizer FILE"):
        load_tokenizer(tmp_path)
