"""Which known name was meant, and when none was."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.diagnostics import did_you_mean
from bringup.nearest import MOST, nearest, slips

WORDS = st.text("abc", max_size=8)


def brute(one: str, other: str) -> int:
    """The distance by its definition."""

    @cache
    def d(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        best = min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (one[i - 1] != other[j - 1]))
        if i > 1 and j > 1 and one[i - 2 : i] == other[j - 1] + other[j - 2]:
            best = min(best, d(i - 2, j - 2) + 1)
        return best

    return d(len(one), len(other))


@given(WORDS, WORDS, st.integers(1, MOST - 1))
def test_slips_are_counted_as_defined(one: str, other: str, limit: int) -> None:
    wanted = brute(one, other)
    assert slips(one, other, limit) == (wanted if wanted <= limit else None)


LAYERS = [f"h.{layer}.attn.{name}.weight" for layer in range(3) for name in ("c_attn", "c_proj")]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("gtp2", ["gpt2", "llama"], ["gpt2"]),  # exchanged
        ("gpt", ["gpt2", "llama"], ["gpt2"]),  # too few
        ("gpt-2", ["gpt2", "llama"], ["gpt2"]),  # too many
        ("GPT2", ["gpt2", "llama"], ["gpt2"]),
        ("flaot32", ["float32", "float16", "bfloat16"], ["float32"]),
        ("foat16", ["float32", "float16", "bfloat16"], ["float16"]),
        ("gith", ["github", "json"], ["github"]),  # cut short
        ("comp", ["compile", "completion", "check"], ["compile", "completion"]),
        ("pat", ["past", "part", "llama"], ["past", "part"]),
        ("h.1.attn.c_attn.wieght", LAYERS, ["h.1.attn.c_attn.weight"]),
        ("attn.c_proj.weight", ["h.7.attn.c_proj.weight", "wte"], ["h.7.attn.c_proj.weight"]),
        ("c_proj.weight", LAYERS, []),  # three of them end so
        ("GemmaForCausalLM", ["LlamaForCausalLM"], []),
        ("yaml", ["full", "concise", "json"], []),
        ("x", ["h", "g", "d"], []),
        ("me", ["mo", "in"], ["mo"]),
        ("", ["a", "bc"], []),
    ],
)
def test_the_nearest_names(name: str, known: list[str], expected: list[str]) -> None:
    assert nearest(name, known) == expected


def test_how_it_is_phrased() -> None:
    assert did_you_mean("gtp2", ["gpt2"]) == "did you mean `gpt2`?"
    assert did_you_mean("comp", ["compile", "completion"]) == "did you mean `compile` or `completion`?"
    assert did_you_mean("zebra", iter(["compile"])) == ""


def test_at_most_two_are_named() -> None:
    assert nearest("cat", ["bat", "rat", "hat", "mat"]) == ["bat", "rat"]
