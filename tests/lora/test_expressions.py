"""Matching of regular expressions in bounded time, against Python's own `re`."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.lora import expressions
from bringup.adapters.lora.expressions import Unbounded, check, ends, fullmatch

ATOMS = st.sampled_from([
    "a", "b", ".", r"\.", r"\d", r"\W", "[ab]", "[^a]", "[0-9_]", r"\b", "^", "$", "(?=a)", "(?!b)", "(?<=a)", "",
])  # fmt: skip
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=5,
)
TEXTS = st.text(alphabet="ab.1_\n", max_size=7)


@settings(max_examples=200, deadline=None)
@given(expression=EXPRESSIONS, text=TEXTS)
def test_matches_are_those_of_re(expression, text):
    assert fullmatch(expression, text) is (re.fullmatch(expression, text) is not None)
    assert bool(ends(expression, text)) is (re.match(expression, text) is not None)


@pytest.mark.parametrize("expression", [r"(a+)+b", r"(a|a)*b", r"(.*)*(.*)*b", r"((((a*)*)*)*)*b", ".*" * 40 + "b"])
def test_what_takes_python_years_is_found_at_once(expression):
    began = time.process_time()
    assert not fullmatch(expression, "a" * 150)
    assert fullmatch(expression, "a" * 150 + "b")
    assert time.process_time() - began < 5


@pytest.mark.parametrize("expression", [r"(a)\1", "(?i)a", "(?i:a)", "(?>a)", "a*+", "(" * 5000 + ")" * 5000])
def test_what_has_no_bounded_matching_is_refused(expression):
    with pytest.raises(Unbounded):
        check(expression)


def test_steps_are_counted(monkeypatch):
    monkeypatch.setattr(expressions, "MOST_STEPS", 10_000)
    with pytest.raises(Unbounded, match="more than 10,000 steps"):
        fullmatch("(" * 12 + "a*" + ")*" * 12 + "b", "a" * 200)
