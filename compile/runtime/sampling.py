"""The next token from logits."""

from __future__ import annotations

import sys

import numpy as np

from bringup.compile.program.program import Draw
from bringup.compile.program.shares import token_of
from bringup.diagnostics import BringupError, fail
from bringup.shown import shown

PERIOD = 1 << 128  # of PCG64: advancing by so many steps restores the state


def check_sampling(temperature: float, top_p: float) -> None:
    """Raises BU019 for an invalid temperature or `top_p`."""
    for name, number in (("temperature", temperature), ("top_p", top_p)):
        if not hasattr(number, "__float__"):  # numpy's numbers have it, a text does not
            raise fail("BU019", f"{name} {shown(number)} is not a number")
    if not 0 <= temperature <= sys.float_info.max:  # an integer may be larger
        raise fail("BU019", f"temperature {_shown(temperature)} is not a number of at least 0", help="0 is greedy")
    if not 0 < top_p <= 1:
        raise fail("BU019", f"top_p {_shown(top_p)} is not above 0 and at most 1", help="1 keeps every token")


def _shown(number: float) -> str:
    return shown(number) if isinstance(number, int) else f"{number}"


def check_logits(logits: np.ndarray, of: str = "") -> None:
    """Raises BU607 if no logit is the largest (NaN); `of` names the request."""
    largest = logits.max()
    if not np.isfinite(largest):
        raise _no_largest("NaN" if np.isnan(largest) else "infinity", of)


def check_drawn(token: int, of: str = "") -> None:
    """Raises BU607 for the token that an executor returns for such logits; see `program.TokenExecutor`."""
    if token < 0:
        raise _no_largest("NaN" if token == -1 else "infinity", of)


def _no_largest(value: str, of: str) -> BringupError:
    return fail(
        "BU607", f"the program returned {value} for logits{of}", help="`bringup verify` finds the module it is from"
    )


def draw_of(temperature: float, top_p: float, random: np.random.Generator, top_k: int = 0) -> Draw:
    """The settings for the token that `next_token` samples, with the number that it draws from the generator."""
    return Draw(float(temperature), float(top_p), random.random() if temperature else 0.0, top_k)


def take_back(draw: Draw, random: np.random.Generator) -> None:
    """Restores the generator to its state before `draw_of`. It must be one of `numpy.random.default_rng`."""
    if draw.temperature:
        generator = random.bit_generator
        assert isinstance(generator, np.random.PCG64)
        generator.advance(PERIOD - 1)


def next_token(
    logits: np.ndarray, temperature: float, top_p: float, random: np.random.Generator, top_k: int = 0
) -> int:
    """Samples the next token from logits [V]. Temperature 0 is greedy (the lowest index of equal logits).

    Otherwise it is sampled from the softmax, restricted to the smallest set of tokens whose probabilities reach `top_p`
    (nucleus sampling, Holtzman et al. 2020), after `top_k` has restricted it to that many of the most likely tokens
    (Fan et al. 2018); 0 does not restrict it.

    Tokens are in descending order of their logits, equal ones by number; see `program/shares.py`.
    Raises BU019 for options out of range, BU607 for logits without a largest one.
    """
    check_sampling(temperature, top_p)
    check_logits(logits)
    return token_of(logits, draw_of(temperature, top_p, random, top_k))
