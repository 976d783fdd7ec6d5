"""Logits for requests: with biases and penalties before sampling, and as log probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from bringup.arguments import integer, mapping
from bringup.compile.runtime.token_ids import check_vocabulary
from bringup.diagnostics import fail
from bringup.shown import shown

MOST_SHIFT = 1e6  # of a logit: far more than any logit, and within the precision of float32


class Shift(NamedTuple):
    """Added to the logits of tokens: `bias` by token, minus `presence` for a token that was sampled before, minus
    `frequency` for each time that it was."""

    bias: Mapping[int, float]
    presence: float
    frequency: float

    def __bool__(self) -> bool:
        return bool(self.bias or self.presence or self.frequency)

    def check(self, vocabulary: int) -> None:
        """Raises BU015 for the bias of a token outside of a vocabulary of this size."""
        if self.bias:
            check_vocabulary(list(self.bias), vocabulary)

    def __call__(self, logits: np.ndarray, drawn: Sequence[int]) -> np.ndarray:
        """The shifted logits [V]; `drawn` are the tokens so far, without the prompt.

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
    """Raises BU024 for a bias that is not a mapping of tokens, BU019 for an invalid number."""
    given = mapping("logit_bias", bias, object)
    biases = {integer("logit_bias", token, minimum=0): _number("logit_bias", value) for token, value in given.items()}
    return Shift(biases, _number("presence_penalty", presence), _number("frequency_penalty", frequency))


def _number(name: str, given: object) -> float:
    """A number in the range of logits, also numpy's."""
    number = cast(Any, given) if hasattr(given, "__float__") else math.nan
    if not -MOST_SHIFT <= number <= MOST_SHIFT:  # before it is a float, which a large integer cannot be
        raise fail("BU019", f"{name} {shown(given)} is not a number from {-MOST_SHIFT:,.0f} to {MOST_SHIFT:,.0f}")
    return float(number)


class Score(NamedTuple):
    """A token with its log probability, and the most likely tokens at its position with theirs, in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score_of(logits: np.ndarray, token: int, count: int) -> Score:
    """Scores by the softmax of the program's logits [V], with the `count` most likely tokens; equal ones by number."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.exp(wide - largest).sum()))
    count = min(count, len(wide))
    least = np.partition(wide, len(wide) - count)[len(wide) - count] if count else np.inf
    likely = np.flatnonzero(wide >= least)
    order = likely[np.argsort(-wide[likely], kind="stable")][:count]
    return Score(token, float(logprobs[token]), tuple((int(each), float(logprobs[each])) for each in order))
