"""Copies in tiles, next to `np.copyto`: odd sizes, offsets, orders of axes and dtypes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.apply.strided_copy import LEAST, ROWS, WIDTH, strided_copy


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two views of one shape in arrays of their own: axes in any order, with a start and a step along each."""
    dtype = np.dtype(draw(st.sampled_from(["u1", "u2", "f4", "u8"])))
    near = st.integers(-2, 2)
    long = [LEAST, ROWS, WIDTH // dtype.itemsize, 2 * ROWS]
    sizes = st.one_of(st.integers(1, 5), st.sampled_from(long).flatmap(lambda size: near.map(lambda by: size + by)))
    shape = [draw(st.integers(1, 3)), draw(sizes), draw(sizes)]
    shape = draw(st.permutations(shape[1:] if draw(st.booleans()) else shape))

    def view() -> np.ndarray:
        order = draw(st.permutations(range(len(shape))))
        starts = [draw(st.integers(0, 3)) for _ in shape]
        steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
        room = [start + size * step for start, size, step in zip(starts, shape, steps, strict=True)]
        whole = np.zeros([room[axis] for axis in order], dtype).transpose(np.argsort(order))
        return whole[tuple(slice(a, a + n * s, s) for a, n, s in zip(starts, shape, steps, strict=True))]

    return view(), view()


@settings(deadline=None, max_examples=150)
@given(views(), st.integers(0, 2**32 - 1))
def test_like_copyto(pair: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    """Every element, and no other byte of the target's memory."""
    target, source = pair
    source[...] = np.random.default_rng(seed).integers(1, 200, source.shape)
    whole = target if target.base is None else target.base
    whole[...] = 255
    wanted = whole.copy()
    start = (target.ctypes.data - whole.ctypes.data) // whole.itemsize
    steps = [stride // whole.itemsize for stride in target.strides]
    at = start + sum(np.ix_(*[np.arange(n) * s for n, s in zip(target.shape, steps, strict=True)]))
    wanted.reshape(-1)[at] = source
    strided_copy(target, source, "same_kind")
    np.testing.assert_array_equal(whole, wanted)


def test_casts() -> None:
    """A transposed copy rounds as `np.copyto` does."""
    source = np.random.default_rng(0).standard_normal((301, 77)).astype("f4")
    target = np.empty((77, 301), "f2")
    strided_copy(target.T, source, "same_kind")
    np.testing.assert_array_equal(target, source.T.astype("f2"))
