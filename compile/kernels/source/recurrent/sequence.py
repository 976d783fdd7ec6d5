"""The tokens of a sequence, and its row of the states."""

import triton
import triton.language as tl


@triton.jit
def tokens_of(sequence, starts, rows, lengths):
    """Of a sequence: its first token, the number of its tokens, its row, and whether these are its first tokens, before
    which the state is zeros. All int64."""
    first = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - first
    row = tl.load(rows + sequence)
    is_new = tl.load(lengths + sequence) <= count
    return first, count, row, is_new
