"""The tokens of a sequence, and its row of a state."""

import triton
import triton.language as tl


@triton.jit
def tokens_of(starts, b):
    """The first token of sequence b, and the number of its tokens. `starts` is None in decode: one token each."""
    if starts is None:
        first, count = b, 1
    else:
        first = tl.load(starts + b)
        count = tl.load(starts + b + 1) - first
    return first, count


@triton.jit
def sequence_of(starts, n, B: tl.constexpr, ENDS: tl.constexpr):
    """The sequence of each token n [N]; B for padding, which follows the last. ENDS: B, rounded up to a power of 2."""
    b = tl.arange(0, ENDS)
    ends = tl.load(starts + 1 + b, mask=b < B, other=9223372036854775807)
    return tl.sum((ends[None, :] <= n[:, None]).to(tl.int32), 1)
