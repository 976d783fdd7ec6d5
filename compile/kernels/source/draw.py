"""The next token of each sequence, and the fields of the step that takes it in.

Sampling is nucleus sampling (Holtzman et al. 2020) by inversion, as in runtime/sampling.py: tokens in descending order
of their logits, equal ones by number; the token at which the sum of the weights exceeds a uniform share of the nucleus.
Top-k sampling (Fan et al. 2018) before that changes only the sum that the nucleus is a share of: that of the first k.
No order is stored. A token's place in it is searched for, two bits of its logit a pass over the row. Weights are whole
numbers of 2^-40, so their sums are exact and every pass has the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from bringup.compile.kernels.source.arithmetic import ordered
from bringup.compile.kernels.source.launches import let_next_start, wait_for_last


@triton.jit
def weights_of(logits, highest, inverse):
    """int64: 2^40 times exp((logit - highest) / temperature); `inverse` is log2(e) / temperature."""
    return (tl.exp2((logits - highest) * inverse) * 1099511627776.0).to(tl.int64)


@triton.jit
def share_of(fraction, total):
    """floor(fraction · total) of a fraction in units of 2^-64, both int64."""
    product = tl.umulhi(fraction.to(tl.uint64, bitcast=True), total.to(tl.uint64, bitcast=True))
    return product.to(tl.int64, bitcast=True)


@triton.jit
def logit_of(order):
    """The logit of an order that is not NaN's: the inverse of `ordered`."""
    bits = order.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ -2147483648, bits ^ -1).to(tl.float32, bitcast=True)


@triton.jit
def weight_above(row_V, highest, inverse, least, V: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the weights of tokens whose logits are above an order."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, V, BLOCK):
        logits = tl.load(row_V + start + at, mask=start + at < V, other=-float("inf")).to(tl.float32)
        sums += tl.where(ordered(logits) > least, weights_of(logits, highest, inverse), 0)
    return tl.sum(sums, 0)


@triton.jit
def order_at(row_V, highest, inverse, target, is_count, V: tl.constexpr, BLOCK: tl.constexpr):
    """The largest order from which on the weights of tokens sum up to more than `target`, and the sum of those above.

    With `is_count` each token weighs 1. Then there are some beyond the row too, of the lowest logit, -infinity.
    """
    at = tl.arange(0, BLOCK)
    least = tl.full((), 0, tl.uint32)
    above = tl.full((), 0, tl.int64)
    for step in range(16):
        unit = tl.full((), 1 << 30, tl.uint32) >> (2 * step)
        one, two, three = least + unit, least + 2 * unit, least + 3 * unit
        from_one = tl.zeros((BLOCK,), tl.int64)
        from_two = tl.zeros((BLOCK,), tl.int64)
        from_three = tl.zeros((BLOCK,), tl.int64)
        if is_count:
            for start in range(0, V, BLOCK):
                logits = tl.load(row_V + start + at, mask=start + at < V, other=-float("inf")).to(tl.float32)
                order = ordered(logits)
                from_one += (order >= one).to(tl.int64)
                from_two += (order >= two).to(tl.int64)
                from_three += (order >= three).to(tl.int64)
        else:
            for start in range(0, V, BLOCK):
                logits = tl.load(row_V + start + at, mask=start + at < V, other=-float("inf")).to(tl.float32)
                order = ordered(logits)
                weights = weights_of(logits, highest, inverse)
                from_one += tl.where(order >= one, weights, 0)
                from_two += tl.where(order >= two, weights, 0)
                from_three += tl.where(order >= three, weights, 0)
        sum_one, sum_two, sum_three = tl.sum(from_one, 0), tl.sum(from_two, 0), tl.sum(from_three, 0)
        above = tl.where(sum_three > target, above, sum_three)
        above = tl.where(sum_two > target, above, sum_two)
        above = tl.where(sum_one > target, above, sum_one)
        least = tl.where(sum_one > target, one, least)
        least = tl.where(sum_two > target, two, least)
        least = tl.where(sum_three > target, three, least)
    return least, above


@triton.jit
def place_at(row_V, highest, inverse, target, is_count, V: tl.constexpr, BLOCK: tl.constexpr):
    """The first token in order up to which the weights sum up to more than `target`; with `is_count`, the tokens.

    Gives the order of its logit, its place among the tokens that have this logit, and the sum of the weights up to it.
    """
    least, above = order_at(row_V, highest, inverse, target, is_count, V, BLOCK)
    each = weights_of(logit_of(least), highest, inverse)
    if is_count:
        place = target - above
        above = weight_above(row_V, highest, inverse, least, V, BLOCK)
    else:
        place = (target - above) // each
    return least, place, above + (place + 1) * each


@triton.jit
def token_of(row_V, least, place, V: tl.constexpr, BLOCK: tl.constexpr):
    """The token at a place among those whose logits have this order."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int64)
    seen = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        logits = tl.load(row_V + start + at, mask=start + at < V, other=-float("inf")).to(tl.float32)
        equal = ((ordered(logits) == least) & (start + at < V)).to(tl.int64)
        number = seen + tl.cumsum(equal, 0) - 1
        found += tl.where((equal != 0) & (number == place), start + at, 0)
        seen += tl.sum(equal, 0)
    return tl.sum(found, 0)


@triton.jit
def draw(
    logits_BV,
    best_BS,
    inverse_B,
    nucleus_B,
    uniform_B,
    top_k_B,
    tokens_B,
    positions_B,
    slots_B,
    block_table_BT,
    lengths_B,
    totals_B,
    drawn_B,
    V: tl.constexpr,
    SLOTS: tl.constexpr,
    TABLE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid [B]. `drawn_B` int64: the token; -1 where the largest logit is NaN, -2 where it is infinite.

    `best_BS` is that of `keep_largest`; it becomes 0. `inverse` is log2(e) / temperature, 0 for the likeliest token;
    `nucleus` and `uniform` are fractions in units of 2^-64, -1 of `nucleus` for all tokens. `top_k` is how many tokens
    the nucleus is of; all for 0, and for V or more. Then the fields are those of the step that takes the token in: the
    row of a cache of ROWS rows a block follows from the block table [B, TABLE]. A sequence of no tokens is padding, and
    stays. Settings and fields are read before the wait: no other launch writes them, and the last one that did ended
    before the first launch of this step began.
    """
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    inverse = tl.load(inverse_B + row)
    nucleus = tl.load(nucleus_B + row)
    uniform = tl.load(uniform_B + row)
    top_k = tl.load(top_k_B + row)
    position = tl.load(positions_B + row) + 1
    length = tl.load(lengths_B + row)
    total = tl.load(totals_B + row) + 1
    is_used = length > 0
    block = position // ROWS
    first = tl.load(block_table_BT + row * TABLE + block, mask=is_used & (block < TABLE), other=0) * ROWS
    wait_for_last(EARLY)
    slots = best_BS + row * SLOTS + tl.arange(0, SLOTS)
    best = tl.max(tl.load(slots), 0)
    order = best >> 31
    token = 2147483647 - (best & 0x7FFFFFFF)
    if order == 0xFFFFFFFF:
        token = token * 0 - 1
    elif (order == 0xFF800000) | (order == 0x007FFFFF):
        token = token * 0 - 2
    elif inverse > 0:
        row_V = logits_BV + row * V
        highest = logit_of(order.to(tl.uint32))
        is_cut = (top_k > 0) & (top_k < V)
        weight = tl.full((), 0, tl.int64)  # of the tokens that are left
        if not is_cut:
            weight = weight_above(row_V, highest, inverse, 0, V, BLOCK)  # 0: below the order of every logit
        least = tl.full((), 0, tl.uint32)
        place = tl.full((), 0, tl.int64)
        for cut in range(tl.where(is_cut, 0, 1), 3):  # the last of `top_k` tokens, that of the nucleus, the token
            if (cut != 1) | (nucleus != -1):
                target = tl.where(cut == 0, top_k - 1, share_of(tl.where(cut == 1, nucleus, uniform), weight))
                least, place, weight = place_at(row_V, highest, inverse, target, cut == 0, V, BLOCK)
        token = token_of(row_V, least, place, V, BLOCK)
    tl.debug_barrier()  # every thread has read the slots and the fields
    tl.store(slots, tl.zeros((SLOTS,), tl.int64))
    tl.store(drawn_B + row, token)
    tl.store(tokens_B + row, tl.maximum(token, 0), mask=is_used)
    tl.store(positions_B + row, position, mask=is_used)
    tl.store(slots_B + row, first + position % ROWS, mask=is_used)
    tl.store(lengths_B + row, length + 1, mask=is_used)
    tl.store(totals_B + row, total, mask=is_used)
