"""Products on tensor cores in bfloat16, of float32 values as sums of two terms."""

import triton
import triton.language as tl


@triton.jit
def terms_of(x):
    """Two values in bfloat16, whose sum is x with a relative error of at most 2⁻¹⁷."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def exact_product(a, b, total):
    """a · b + total for a in bfloat16, which is not rounded, and b in float32."""
    high, low = terms_of(b)
    return tl.dot(a, high, tl.dot(a, low, total))


@triton.jit
def wide_product(a, b, total):
    """a · b + total for a and b in float32. The product of the small terms of both is omitted."""
    a_high, a_low = terms_of(a)
    b_high, b_low = terms_of(b)
    return tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high, total)))
