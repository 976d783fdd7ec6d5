"""Matching of regular expressions in bounded time, against Python's own `re`."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.lora import expressions
from bringup.adapters.lora.expressions import MOST_LENGTH, Unbounded, check, ends, fullmatch
from bringup.adapters.lora.name_patterns import NamePatterns, is_last

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


@pytest.mark.parametrize(
    "expression",
    [
        r"(a)\1",
        "(?i)a",
        "(?i:a)",
        "(?>a)",
        "a*+",
        "(" * 5000 + ")" * 5000,
        "(" * 400 + "a*" + ")*" * 400,
        "a?" * 500_000,
    ],
)
def test_what_has_no_bounded_matching_is_refused(expression):
    with pytest.raises(Unbounded):
        check(expression)


def test_steps_are_counted(monkeypatch):
    monkeypatch.setattr(expressions, "MOST_STEPS", 10_000)
    with pytest.raises(Unbounded, match="more than 10,000 steps"):
        fullmatch("(" * 12 + "a*" + ")*" * 12 + "b", "a" * 200)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("(?:.(?:" + "|" * 2000 + "))*", "a" * 50),  # alternatives
        (f"(?:[^{''.join(map(chr, range(0x4E00, 0x4E00 + 4000, 2)))}])*", "a" * 50),  # items of a character class
        (".*(?<=)", "a" * 500),  # places at which a lookbehind can begin
    ],
)
def test_parts_without_characters_are_counted(expression: str, text: str) -> None:
    with pytest.raises(Unbounded, match="steps"):
        fullmatch(expression, text)


def test_a_list_of_names_needs_few_steps(monkeypatch) -> None:
    monkeypatch.setattr(expressions, "MOST_STEPS", 10_000)
    names = [f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(80) for part in "qkvo"]
    assert fullmatch(rf"(.*\.)?({'|'.join(map(re.escape, names))})$", f"base_model.{names[-1]}")


def test_the_longest_and_deepest_expressions():
    deep, long = "(" * 39 + "a*" + ")*" * 39, "a" * MOST_LENGTH
    for expression in (deep, long):
        check(expression)
    assert fullmatch(deep, "aaa")
    for expression in (f"(({deep})*)*", f"{long}a"):
        with pytest.raises(Unbounded):
            check(expression)


KEYS = st.one_of(
    EXPRESSIONS,
    st.text(alphabet="ab.1_", max_size=4),
    st.text(alphabet="ab.", max_size=3).map("^{}".format),
    st.lists(st.sampled_from(["a", "b", r"\.", "."]), max_size=3).map("".join),
)


@settings(max_examples=300, deadline=None)
@given(keys=st.lists(KEYS, max_size=5, unique=True), text=st.text(alphabet="ab.1_", max_size=7))
def test_the_first_pattern_that_matches_is_that_of_peft(keys, text):
    from peft.utils.other import get_pattern_key  # imports bitsandbytes, which takes a second of each worker

    values = {key: at + 1 for at, key in enumerate(keys)}
    expected = values.get(get_pattern_key(keys, text), 0)
    assert NamePatterns.of(values).value(text, 0) == expected


def test_entries_for_each_module_are_found_by_lookup():
    """5,000 x 400 comparisons would take a minute."""
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w{part}" for layer in range(10) for expert in range(250)
             for part in (1, 2)]  # fmt: skip
    patterns = NamePatterns.of({name: at + 1 for at, name in enumerate(names)})
    began = time.process_time()
    assert [patterns.value(f"base.{name}", 0) for name in names[:400]] == [*range(1, 401)]
    assert all(is_last(frozenset(names), f"base.{name}") for name in names)
    assert time.process_time() - began < 5
    assert patterns.forms < 20
    assert NamePatterns.of({f"({name})": 1 for name in names}).forms == len(names)
