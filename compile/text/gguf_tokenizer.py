"""The tokenizer of a GGUF file, converted to an equivalent tokenizer.json.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer. Defaults of missing keys: llama.cpp,
`llama-vocab.cpp`. tokenizer.json: https://github.com/huggingface/tokenizers (serde of `TokenizerImpl`).
"""

from __future__ import annotations

from typing import Any

from bringup.compile.text.gguf_bpe import byte_level
from bringup.compile.text.gguf_pieces import listed_merges, scored_merges, unigram
from bringup.compile.text.gguf_vocab import Vocab, broken, unsupported

# By `tokenizer.ggml.model`.
KINDS = {"gpt2": byte_level, "llama": scored_merges, "gemma4": listed_merges, "t5": unigram}
EOS = ("eot_token_id", "eom_token_id")  # end of turn, of message


def tokenizer_json(vocab: Vocab) -> dict[str, Any]:
    """The contents of a tokenizer.json. Raises BU221 for metadata of another type, BU231 for an invalid vocabulary,
    BU232 for a tokenizer that is not supported.
    """
    meta = vocab.meta
    model = meta.scalar("tokenizer.ggml.model")
    if model not in KINDS:
        message = f"`{model[:40]}`" if isinstance(model, str) else "no name"
        known = ", ".join(f"`{kind}`" for kind in KINDS)
        raise unsupported(meta, f"a tokenizer of model {message}; {known} are supported")
    parts = KINDS[model](vocab)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocab.added(),
        "post_processor": _ends(vocab),
        **parts,
    }


def eos_ids(vocab: Vocab) -> frozenset[int]:
    """The ids that end a text, a turn or a message."""
    ids = (vocab.eos, *(vocab.meta.scalar(f"tokenizer.ggml.{key}") for key in EOS))
    return frozenset(number for number in ids if type(number) is int)


def _ends(vocab: Vocab) -> dict[str, Any] | None:
    """A post-processor that adds the tokens which the file requires around a text; None if there are none."""
    text, special = {"Sequence": {"id": "A", "type_id": 0}}, dict[str, Any]()
    ends: list[list[dict[str, Any]]] = [[], []]
    for around, is_added, number, what in zip(
        ends, vocab.add_ends, (vocab.bos, vocab.eos), ("beginning", "end"), strict=True
    ):
        if not is_added:
            continue
        if type(number) is not int or not 0 <= number < len(vocab.tokens):
            raise broken(vocab.meta, f"adds a token at the {what} of a text, and its id is {number!r}")
        name = vocab.tokens[number]
        around.append({"SpecialToken": {"id": name, "type_id": 0}})
        special[name] = {"id": name, "ids": [number], "tokens": [name]}
    if not special:
        return None
    pair = [*ends[0], text, *ends[1], *ends[0], {"Sequence": {"id": "B", "type_id": 1}}, *ends[1]]
    single = [*ends[0], text, *ends[1]]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
