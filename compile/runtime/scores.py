"""Logits for requests: with biases and penalties before sampling, and as log probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from bringup.arguments import mapping, whole
from bringup.compile.runtime.token_ids import check_vocabulary
from bringup.diagnostics import fail
from bringup.shown import shown

MOST_SHIFT = 1e6  # of a logit: far beyond any, and a float32 is exact enough behind it


class Shift(NamedTuple):
    """What is added to the logits of tokens: `bias` by token, less `presence` for a token that was drawn before, less
    `frequency` for each time that it was."""

    bias: Mapping[int, float]
    presence: float
    frequency: float

    def __bool__(self) -> bool:
        return bool(self.bias or self.presence or self.frequency)

    def check(self, vocabulary: int) -> None:
        """Raises BU015 for the bias of a token that is not in a vocabulary of so many."""
        if self.bias:
            check_vocabulary(list(self.bias), vocabulary)

    def __call__(self, logits: np.ndarray, drawn: Sequence[int]) -> np.ndarray:
        """Logits [V] after it, where `drawn` are the tokens so far, without the prompt.

        https://platform.openai.com/docs/guides/text-generation (frequency and presence penalties)
        """
        shifted = logits.copy()
        if self.bias:
            shifted[list(self.bias)] += np.array(list(self.bias.values()), logits.dtype)
        if drawn and (self.presence or self.frequency):
            tokens, counts = np.unique(np.array(drawn), return_counts=True)
            shifted[tokens] -= (self.frequency * counts + self.presence).astype(logits.dtype)
        return shifted


def shift(bias: object, presence: object, frequency: object) -> Shift:
    """Raises BU024 for a bias that is no mapping of tokens, BU019 for what is no number."""
    given = mapping("logit_bias", bias, object)
    biases = {whole("logit_bias", token, least=0): _number("logit_bias", value) for token, value in given.items()}
    return Shift(biases, _number("presence_penalty", presence), _number("frequency_penalty", frequency))


def _number(name: str, given: object) -> float:
    """A number of the size of logits; numpy's too."""
    number = float(cast(Any, given)) if hasattr(given, "__float__") else math.nan
    if not -MOST_SHIFT <= number <= MOST_SHIFT:
        raise fail("BU019", f"{name} {shown(given)} is not a number from {-MOST_SHIFT:,.0f} to {MOST_SHIFT:,.0f}")
    return number


class Score(NamedTuple):
    """A token with the logarithm of its probability, and the likeliest tokens of its place with theirs, in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score_of(logits: np.ndarray, token: int, count: int) -> Score:
    """By the softmax of logits [V] as the program gives them, with the `count` likeliest; equal ones by number."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.exp(wide - largest).sum()))
    count = min(count, len(wide))
    least = np.partition(wide, len(wide) - count)[len(wide) - count] if count else np.inf
    likely = np.flatnonzero(wide >= least)
    order = likely[np.argsort(-wide[likely], kind="stable")][:count]
    return Score(token, float(logprobs[token]), tuple((int(each), float(logprobs[each])) for each in order))
