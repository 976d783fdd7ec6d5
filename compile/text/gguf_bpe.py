"""A byte-level BPE (`tokenizer.ggml.model` = gpt2): ordered merges of bytes, which are written as printable letters."""

from __future__ import annotations

from typing import Any

from bringup.compile.text.gguf_pre import PRE
from bringup.compile.text.gguf_vocab import Vocab, unsupported
from bringup.diagnostics import did_you_mean


def byte_level(vocab: Vocab) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, model and decoder of a tokenizer.json. Raises BU231 for an invalid vocabulary, BU232
    for an unknown pre-tokenizer.
    """
    name = vocab.meta.scalar("tokenizer.ggml.pre")
    pre = PRE.get(name) if isinstance(name, str) else None
    if pre is None:
        message = f"pre-tokenizer `{name[:40]}`" if isinstance(name, str) else "no name of a pre-tokenizer"
        guess = did_you_mean(str(name)[:40], PRE) or f"known: {', '.join(PRE)}"
        raise unsupported(vocab.meta, f"{message}, whose regular expressions bringup does not have; {guess}")
    model = {"type": "BPE", "vocab": vocab.ids(), "merges": vocab.merges(), "ignore_merges": pre.ignore_merges}
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(_split, pre.regexes), byte]},
        "decoder": byte,
        "model": model,
    }


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
