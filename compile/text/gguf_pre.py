"""The pre-tokenizers of byte-level tokenizers, which split a text into words: the values of `tokenizer.ggml.pre`.

A name selects regular expressions, which are applied one after another, each to the parts that the one before it did
not match. Names and flags are llama.cpp's (`llama-vocab.cpp`); the expressions are those of the models' published
tokenizer.json files. Names whose rules are code (`kimi-k2`, `afmoe`), or whose models bringup has no graph for, are not
supported.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # I'm, we'll
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER}|{_SPACE}"
_QWEN2 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_OTHER}|{_SPACE}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HEAD, _SLASH = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH}|{_SPACE}"
_GPT4O = rf"{_HEAD}{_UPPER}*{_LOWER}+{_SHORT}?|{_HEAD}{_UPPER}+{_LOWER}*{_SHORT}?|\p{{N}}{{1,3}}|{_SLASH}|{_SPACE}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK, _KANA = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True, slots=True)
class Pre:
    """A pre-tokenizer: its regular expressions; whether words that are tokens are not merged; whether BOS is added."""

    regexes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


PRE: dict[str, Pre] = {
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": Pre((r"[\p{P}\$\+<=>\^~\|`]+", _WORDS, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "mellum"), Pre((_WORDS,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), Pre((r"\p{N}", _WORDS))),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), Pre((r"\p{N}", _WORDS))),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Pre((_LLAMA3,), ignore_merges=True, add_bos=True)),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "lfm2"), Pre((_LLAMA3,), ignore_merges=True, add_bos=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), Pre((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2"), Pre((_QWEN2,))),
    "qwen35": Pre((_QWEN35,)),
    "tekken": Pre((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Pre((_GPT4O,))),
    "deepseek-coder": Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Pre((r"\p{N}{1,3}", _KANA, _DEEPSEEK3))),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Pre((_BLOOM,))),
    "viking": Pre((_BLOOM, r"\p{N}")),
}
