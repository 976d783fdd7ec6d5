"""Small byte-level BPE tokenizers that split text as published tokenizer.json files do, and GGUF files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

from tests.compile.tokenizer_files import sentences, write_tokenizer

LLAMA3 = (  # as in meta-llama/Meta-Llama-3-8B tokenizer.json
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def cut(*steps: str | pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Regexes and other steps one after another, then bytes."""
    built = [pre_tokenizers.Split(Regex(step), "isolated") if isinstance(step, str) else step for step in steps]
    return pre_tokenizers.Sequence([*built, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# What the published tokenizer.json files have: openai-community/gpt2, bigcode/starcoder and its like,
# meta-llama/Meta-Llama-3-8B, tiiuae/falcon-7b, deepseek-ai/deepseek-coder-6.7b-base, bigscience/bloom.
PRE = {
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([DIGITS, BYTES]),
    "llama-bpe": cut(LLAMA3),
    "falcon": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            BYTES,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    ),
    "deepseek-coder": cut(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGITS),
    "bloom": cut(r" ?[^(\s|[.,!?…。，、।۔،])]+"),  # noqa: RUF001
}
CONTROL, USER = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]


def trained(pre: str) -> tokenizers.Tokenizer:
    """A small byte-level BPE as its makers would save it, with an added-token type of each kind."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE[pre]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False
    )
    tokenizer.train_from_iterator(sentences(), trainer)
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
    }
    return write_tokenizer(path, values | changes)
