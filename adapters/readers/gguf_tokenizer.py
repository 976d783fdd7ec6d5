"""The tokenizer in a GGUF file, as the tokenizer.json that means the same.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer. Pre-tokenizers: llama.cpp
`llama-vocab.cpp`, where a name (`tokenizer.ggml.pre`) stands for regexes that are applied one after another.
tokenizer.json: https://github.com/huggingface/tokenizers (`TokenizerImpl`'s serde format).
"""

from __future__ import annotations

from typing import Any

from bringup.adapters.readers.gguf import Metadata
from bringup.diagnostics import BringupError, did_you_mean, fail

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",)
_DIGITS = (r"\p{N}", *_GPT2)
_LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
PRE = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
}
CONTROL, USER_DEFINED = 3, 4  # `tokenizer.ggml.token_type`
EOS = ("eos_token_id", "eot_token_id", "eom_token_id")  # end of sequence, of turn, of message


def tokenizer_json(meta: Metadata) -> dict[str, Any]:
    """The words of a tokenizer.json for a byte-level BPE. Raises BU231, BU232."""
    model, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        known = "byte-level BPE (`gpt2`) is the kind that bringup builds from GGUF"
        raise _unsupported(meta, f"a tokenizer of model `{model}`; {known}")
    if pre not in PRE:
        guess = did_you_mean(str(pre), PRE) or f"known: {', '.join(PRE)}"
        raise _unsupported(meta, f"pre-tokenizer `{pre}`, whose regexes bringup does not have; {guess}")
    tokens: list[str] = _array(meta, "tokens")
    merges = [merge.split(" ") for merge in _array(meta, "merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens) or not all(len(pair) == 2 for pair in merges):
        raise _broken(meta, "has a token twice, or a merge that is not of two tokens")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    splits = [_split(regex) for regex in PRE[pre]]
    llama3 = PRE[pre] is _LLAMA3
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(meta, tokens),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": _begin(meta, tokens) if meta.get("tokenizer.ggml.add_bos_token", llama3) else None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": llama3},
    }


def eos_ids(meta: Metadata) -> frozenset[int]:
    """The ids that end a text, a turn or a message."""
    ids = (meta.get(f"tokenizer.ggml.{key}") for key in EOS)
    return frozenset(number for number in ids if type(number) is int)


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _added(meta: Metadata, tokens: list[str]) -> list[dict[str, Any]]:
    """Tokens that are matched whole in a text before anything splits it."""
    types: list[int] = meta.get("tokenizer.ggml.token_type", [])
    if types and len(types) != len(tokens):
        raise _broken(meta, f"has {len(tokens)} tokens and {len(types)} token types")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": tokens[index], **plain, "special": kind == CONTROL}
        for index, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _begin(meta: Metadata, tokens: list[str]) -> dict[str, Any]:
    """A post-processor that puts the beginning-of-sequence token first."""
    number = meta.get("tokenizer.ggml.bos_token_id")
    if type(number) is not int or number >= len(tokens):
        raise _broken(meta, f"adds a beginning-of-sequence token, and its id is {number!r}")
    name, text = tokens[number], {"Sequence": {"id": "A", "type_id": 0}}
    bos = {"SpecialToken": {"id": name, "type_id": 0}}
    pair = [bos, text, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {name: {"id": name, "ids": [number], "tokens": [name]}}
    return {"type": "TemplateProcessing", "single": [bos, text], "pair": pair, "special_tokens": special}


def _array(meta: Metadata, key: str) -> list[str]:
    values = meta.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise _broken(meta, f"has no strings under `tokenizer.ggml.{key}`")
    return values  # pyright: ignore[reportUnknownVariableType]  a GGUF array has one element type


def _broken(meta: Metadata, why: str) -> BringupError:
    help = "convert the model again, or copy the model's tokenizer.json beside the weights"
    return fail("BU231", f"the tokenizer in `{meta.path}` {why}", help=help, file=str(meta.path))


def _unsupported(meta: Metadata, what: str) -> BringupError:
    return fail(
        "BU232",
        f"`{meta.path}` has {what}",
        help="give the model's own tokenizer.json; the weights can stay in this file",
        file=str(meta.path),
    )
