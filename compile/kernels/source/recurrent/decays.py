"""Decays between the tokens of a chunk."""

import triton
import triton.language as tl


@triton.jit
def decays_between(next_decay, C: tl.constexpr):
    """exp of the sum of the decays after token j up to token i, in row i and column j [C C]; 1 above the diagonal.

    `next_decay` [C]: the decay of the token after each, 0 for the last. Each sum has only its own terms, because a
    difference of two sums since the chunk began would lose the digits of weak decays that follow strong ones.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    terms = tl.where(row > column, next_decay[None, :], 0.0)
    return tl.exp(tl.cumsum(terms, 1, reverse=True))
