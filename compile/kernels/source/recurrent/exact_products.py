"""Products on tensor cores in bfloat16, of float32 values as sums of two terms."""

import triton
import triton.language as tl


@triton.jit
def terms_of(x):
    """Two values in bfloat16, whose sum is x with a relative error of at most 2⁻¹⁷.

    The first is rounded by integer operations: a conversion of one value has a quarter of their throughput.
    """
    rounded = (x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000
    high = (rounded >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return high, (x - rounded.to(tl.float32, bitcast=True)).to(tl.bfloat16)


@triton.jit
def exact_product(a, b, total):
    """a · b + total for a and b in bfloat16, which is not rounded, or float32. The product of two small terms is
    omitted."""
    if a.dtype != tl.float32 and b.dtype != tl.float32:
        total = tl.dot(a, b, total)
    elif a.dtype != tl.float32:
        high, low = terms_of(b)
        total = tl.dot(a, high, tl.dot(a, low, total))
    elif b.dtype != tl.float32:
        high, low = terms_of(a)
        total = tl.dot(high, b, tl.dot(low, b, total))
    else:
        a_high, a_low = terms_of(a)
        b_high, b_low = terms_of(b)
        total = tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high, total)))
    return total
