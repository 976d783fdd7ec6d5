"""A prompt is cut so that padding costs at most what the prompt itself does."""

import pytest

from bringup.compile.program.export_options import BUCKETS
from bringup.compile.program.step_inputs import chunks_of


@pytest.mark.parametrize("sizes", [BUCKETS, (16,), (2, 3, 100), (7, 64, 65)])
def test_every_token_is_taken_once_and_padding_is_at_most_half(sizes):
    for count in range(1, 1200):
        chunks = list(chunks_of(count, sizes))
        assert sum(taken for taken, _ in chunks) == count
        assert all(0 < taken <= size and size in sizes for taken, size in chunks)
        assert all(taken == size for taken, size in chunks[:-1])
        taken, size = chunks[-1]
        assert size <= max(2 * taken, min(sizes))


@pytest.mark.parametrize(
    ("count", "entries"),
    [(1, [32]), (33, [32, 32]), (127, [32] * 4), (128, [256]), (300, [256, 32, 32]), (600, [256, 256, 32, 32, 32])],
)
def test_the_smallest_half_full_entry_ends_a_prompt(count, entries):
    assert [size for _, size in chunks_of(count, BUCKETS)] == entries
