"""Lists of modules: expressions against Python's own, and patterns that would take it forever."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bringup.graphs.config.expression import DEEPEST, LONGEST, Expression
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import MOST_EXPRESSIONS, UnquantizedModules

PIECES = ["a", "b", ".", r"\.", r"\d", "[ab]", "[^a.]", "(a|b)", "(?:a|)", "(?=b)", "(?!a)", "^", "$", "ab|b"]
TIMES = ["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"]
ONE = st.tuples(st.sampled_from(PIECES), st.sampled_from(TIMES)).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
SEVERAL = st.lists(ONE, max_size=4).map("".join)
WHOLE = st.tuples(SEVERAL, st.sampled_from(["", "+", "?"]), SEVERAL).map(lambda x: f"({x[0]}){x[1]}{x[2]}")


@settings(max_examples=400, deadline=None)
@given(WHOLE, st.text("ab.1\n", max_size=7))
def test_it_matches_what_re_matches(expression: str, text: str) -> None:
    try:
        ours = Expression(expression)
    except ValueError:  # a look-ahead is as deep as a repetition
        assume(False)
    assert ours.matches(text) == (re.match(expression, text) is not None)


HOSTILE = ["(a+)+$", "(a|a)*$", "(a|ab|b)*c", "(.*)*x", ".*.*.*.*.*.*.*.*x", "((?!x)a?)*$"]


@pytest.mark.parametrize("expression", HOSTILE)
def test_hostile_expressions_end(expression: str) -> None:
    """With `re`, most of these would not in a lifetime."""
    assert not Expression(expression).matches("a" * 300 + "y")


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        ")",
        "a)",
        "a**",
        "*",
        "[a",
        "(?i)a",
        "(?P<x>a)",
        r"(a)\1",
        r"\b",
        "a{2,1}",
        "a{1001}",
        "((a+)+)+",
        "a" * (LONGEST + 1),
    ],
)  # fmt: skip
def test_what_is_not_understood(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(expression)
    assert DEEPEST == 2


@pytest.mark.parametrize(
    ("key", "entry", "inside", "outside"),
    [
        ("ignore", "re:.*mlp.gate$", "model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj"),
        ("exclude", r"re:^(?!.*\.mlp\.experts(?:\.|$)).*$", "model.layers.0.self_attn.q_proj", "m.mlp.experts.0.w1"),
        (
            "exclude_modules",
            "model.layers.0.self_attn*",
            "model.layers.0.self_attn.o_proj",
            "model.layers.10.self_attn.o_proj",
        ),
        ("ignored_layers", r"model\.layers\.(0|1)", "model.layers.1.mlp.up_proj", "model.layers.2.mlp.up_proj"),
        ("modules_to_not_convert", "o_proj", "model.layers.1.self_attn.o_proj", "model.layers.1.self_attn.q_proj"),
    ],
)
def test_lists_of_every_spelling(key: str, entry: str, inside: str, outside: str) -> None:
    words = Fields({key: [entry]}, "test")
    unquantized = UnquantizedModules.from_fields(words)
    assert not words.findings
    assert (inside in unquantized, outside in unquantized) == (True, False)


def test_too_many_expressions() -> None:
    words = Fields({"ignore": [f"re:a{{{k}}}(b|c)" for k in range(MOST_EXPRESSIONS + 1)]}, "test")
    UnquantizedModules.from_fields(words)
    assert [finding.code for finding in words.findings] == ["BU122"]
