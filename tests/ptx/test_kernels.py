"""Whole kernels from Triton's PTX against float64, with every observer and at both moments of asynchronous copies."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("triton")

from bringup.compile import ptx
from tests.ptx.cases import CASES, compiled, program
from tests.ptx.checks import error

FAST = {
    ("rms_norm", 80),
    ("gemm_bf16", 80),
    ("gemm_bf16", 90),
    ("gemm_specialized", 90),
    ("decode", 89),
    ("grid_barrier", 80),
}
# Triton writes products of matrices in one way up to sm_89 and in another for sm_90; the rest it writes alike for all:
# each of those on one architecture, the last of its own, besides the FAST ones.
MATRICES = ("gemm", "flash")


def listed(name: str, targets: tuple[int, ...]) -> set[int]:
    fast = {target for each, target in FAST if each == name}
    return fast | ({targets[0], targets[-1]} if name.startswith(MATRICES) else {targets[-1]})


PAIRS = [
    pytest.param(name, target, marks=() if (name, target) in FAST else pytest.mark.slow)
    for name, case in CASES.items()
    for target in sorted(listed(name, case.targets))
]


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_a_kernel_gives_its_result(name, target):
    """And has no race, no unordered access and no read of unwritten shared memory."""
    for copies, seed in (("latest", None), ("earliest", 3)):
        findings: list[str] = []

        def start(*arguments, copies=copies, seed=seed, findings=findings):
            watch = [ptx.Races(), ptx.Order()]
            run = compiled(name, target).start(program(name, target), *arguments, watch=watch, copies=copies, seed=seed)
            findings += [str(each) for each in run.races if not each.harmless] + [str(each) for each in run.order]
            return run

        for shape, result, reference, tolerance in CASES[name].check(start):
            assert error(result, reference) <= tolerance, f"{shape}, copies {copies}"
        assert findings == []


def traffic(name: str, target: int) -> list[ptx.Run]:
    """The runs of a case, with bytes and banks counted."""
    runs: list[ptx.Run] = []
    begin = partial(compiled(name, target).start, program(name, target))

    def start(*arguments):
        runs.append(begin(*arguments, watch=[ptx.Bytes(), ptx.Banks()]))
        return runs[-1]

    list(CASES[name].check(start))
    return runs


def test_each_byte_is_read_once():
    """rms_norm of 5 rows of 1024: its inputs and its output, each byte once, in whole sectors."""
    run = traffic("rms_norm", 80)[0]
    assert {buffer.name: (buffer.read, buffer.written) for buffer in run.bytes.buffers} == {
        "x": (5 * 1024 * 2, 0),
        "weight": (1024 * 2, 0),
        "out": (0, 5 * 1024 * 2),
    }
    assert (run.bytes.read, run.bytes.written) == (6 * 2048, 5 * 2048)
    assert run.bytes.sector_excess == 1.0


@pytest.mark.slow
def test_a_gemm_reads_its_operands_from_shared_memory_without_conflicts():
    run = traffic("gemm_bf16", 80)[0]
    matrix_loads = [use for use in run.banks if "ldmatrix" in use.instruction]
    assert matrix_loads
    assert {use.excess for use in matrix_loads} == {1.0}
