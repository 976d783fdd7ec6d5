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


@triton.jit
def chunk_of(starts, slot, B: tl.constexpr, C: tl.constexpr, ENDS: tl.constexpr):
    """The first token of the chunk in a slot, and the number of tokens from there to the end of its sequence.

    The chunks of C tokens of sequence b have the slots from starts[b] // C + b on: a sequence that begins in the middle
    of C tokens begins a chunk. At most 0 tokens: the slot has no chunk.
    """
    b = tl.arange(0, ENDS)
    begins = tl.load(starts + b, mask=b < B, other=0) // C + b
    sequence = tl.sum(((begins <= slot) & (b < B)).to(tl.int32), 0) - 1
    first, count = tokens_of(starts, sequence)
    done = (slot - first // C - sequence) * C
    return first + done, count - done
