"""Axes: what parses, what is refused, and how two descriptions of a tensor are brought together."""

from __future__ import annotations

import pytest

from bringup.graphs.core.axes import AxesError, parse, permutation, shape_of, show, sized

SIZES = {"h": 2, "t": 3, "d": 4, "m": 5, "g": 1}


@pytest.mark.parametrize(
    "text",
    ["out in", "out:(t h d) in:m", "(h t d) m", "out:(q:(h d) | (g d) | v:(g d)) in", "a 3 (b | (c d))"],
)
def test_show_is_the_inverse_of_parse(text):
    assert show(parse(text)) == text


@pytest.mark.parametrize("text", ["a)", "(a", "a:", "(a |", "a | b", "a,b", "()"])
def test_bad_axes_are_refused(text):
    with pytest.raises(AxesError):
        parse(text)


def test_sizes_of_groups_follow_from_their_parts():
    assert shape_of(sized("out:(t h d) (h d | g d) m", SIZES)) == (24, 12, 5)


@pytest.mark.parametrize(
    ("actual", "wanted", "order"),
    [
        ("(h t d) m", "out:(t h d) in:m", (1, 0, 2, 3)),
        ("in:m out:(t h d)", "out:(t h d) in:m", (1, 2, 3, 0)),
        ("m out:(t h d)", "out:(t h d) m", (1, 2, 3, 0)),
    ],
)
def test_permutation(actual, wanted, order):
    assert permutation(sized(actual, SIZES), sized(wanted, SIZES))[1] == order


def test_a_group_named_as_a_whole_matches_its_refinement():
    out = {"out": 24, "in": 5}
    assert permutation(sized("in out", out), sized("out:(t h d) in:m", SIZES))[1] == (1, 0)


@pytest.mark.parametrize(
    ("actual", "wanted"),
    [
        ("h m", "h d"),  # another name
        ("(q:h | k:g) m", "(k:g | q:h) m"),  # parts in another order
        ("h h", "h h"),  # a name twice says nothing
    ],
)
def test_axes_that_do_not_fit(actual, wanted):
    with pytest.raises(AxesError):
        permutation(sized(actual, SIZES), sized(wanted, SIZES))
