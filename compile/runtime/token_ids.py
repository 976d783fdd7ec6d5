"""Validates the token ids of callers, and the inputs that go with them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import SupportsIndex

from bringup.diagnostics import fail
from bringup.shown import shown


def integers(tokens: Iterable[SupportsIndex]) -> list[int]:
    """Token ids, from any iterable. Raises BU015 for other values, and for an argument that is no iterable."""
    try:
        listed = list(tokens)
    except TypeError:  # a number, or a torch tensor or array without dimensions
        raise fail("BU015", f"tokens are integers in a list, not a {type(tokens).__name__}") from None
    return [_integer(token) for token in listed]


def _integer(token: SupportsIndex) -> int:
    try:
        return operator.index(token)
    except TypeError:
        raise fail("BU015", f"token {shown(token)} is not an integer") from None


def check_vocabulary(tokens: list[int], size: int) -> None:
    """Raises BU015 for a token outside of a vocabulary of this size, and for an empty list."""
    wrong = [token for token in tokens if not 0 <= token < size]
    if wrong or not tokens:
        message = f"token {wrong[0]} is not in the vocabulary of {size}" if wrong else "the list of tokens is empty"
        raise fail("BU015", message)


def check_input(count: int, limit: int | None) -> None:
    """Raises BU016 for a prompt that exceeds the bundle's longest; None is no limit of its own."""
    if limit is not None and count > limit:
        message = f"{count} tokens are more than the bundle's longest prompt of {limit}"
        raise fail("BU016", message, help="compile with a larger --max-input-len")


def check_inputs(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], count: int) -> None:
    """Raises BU029 for inputs of `count` tokens whose shapes are not those that the model needs."""
    if found != wanted:
        raise fail("BU029", f"inputs {found or 'none'}: this model needs {wanted or 'none'} with {count} tokens")


def check_context(count: int, context: int) -> None:
    """Raises BU016 for more tokens than the context."""
    if count > context:
        message = f"{count} tokens do not fit the bundle's context of {context}"
        raise fail("BU016", message, help="compile with a larger --max-seq-len")
