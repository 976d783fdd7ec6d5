"""Transposes by vector instructions, next to numpy's: every width of element, odd sizes, rows that are not aligned."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.apply import compiled_transpose
from bringup.adapters.apply.strided_copy import strided_copy


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_transpose, "LEAST", 0)


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "c8", "?"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 192), (67, 129), (1030, 70), (1, 65), (5, 3)])
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_like_numpy(dtype: str, rows: int, columns: int, offset: int) -> None:
    """Every element of the target, and no byte around it."""
    pytest.importorskip("llvmlite")
    source = np.random.default_rng(rows).integers(0, 250, (rows + 3, columns + offset)).astype(dtype)[3:, offset:]
    whole = np.full((columns + 2 * 16, rows + offset + 16), 1, dtype)
    wanted = whole.copy()
    place = (slice(16, 16 + columns), slice(offset, offset + rows))
    wanted[place] = source.T
    assert compiled_transpose.transpose(whole[place].T, source)
    np.testing.assert_array_equal(whole, wanted)


def test_rows_from_the_last_to_the_first() -> None:
    pytest.importorskip("llvmlite")
    source = np.arange(96 * 80, dtype="u2").reshape(96, 80)[::-1]
    target = np.empty((80, 96), "u2")
    assert compiled_transpose.transpose(target.T, source)
    np.testing.assert_array_equal(target, source.T)


def test_what_is_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts, elements of 16 bytes, and a machine without llvmlite: nothing is written, and the copy is the same."""
    source = np.arange(70.0 * 90).reshape(70, 90)
    for dtype, wide in (("f4", source), ("c16", source.astype("c16"))):
        target = np.zeros((90, 70), dtype)
        assert not compiled_transpose.transpose(target.T, wide)
        assert not target.any()
    monkeypatch.setattr(compiled_transpose, "installed", lambda: False)
    target = np.zeros((90, 70))
    assert not compiled_transpose.transpose(target.T, source)
    strided_copy(target.T, source, "same_kind")
    np.testing.assert_array_equal(target, source.T)
