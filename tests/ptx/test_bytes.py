"""Decode of Llama-3.2-1B's shape: launches, bytes and sectors; `benchmarks/kernel_bytes.py` writes the table."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks.kernel_bytes import LAYERS, must_read, program_of, rows

NEAR = 0.03
SECTORS = 1.05  # of the fewest that could serve the requests of a load of weights


@pytest.mark.slow
def test_a_step_reads_what_it_has_to(tmp_path: Path) -> None:
    schedule, interface = program_of("sm_90", tmp_path)
    found = rows(schedule, interface, "sm_90")
    assert sum(row.launches for row in found) <= 5 * LAYERS + 2
    read = sum(row.launches * row.read for row in found)
    counted = sum(row.launches * (row.cost.weights + row.cost.cache + row.cost.other) for row in found)
    assert read == pytest.approx(counted, rel=NEAR)
    assert read == pytest.approx(must_read(), rel=NEAR)
    assert all(row.written == row.cost.written for row in found)
    assert max(row.excess for row in found) <= SECTORS
