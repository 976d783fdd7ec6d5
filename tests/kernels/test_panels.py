"""Products of more rows than a tile has, through tensor maps in programs of several tiles, against float64.

Each runs under all checks of `bringup kernels test`. Channels are more than the stages of the loop hold. On sm_90 they
are computed by `linear_specialised`. `linear_panels`, the kernel of sm_100, is tested here too: the emulator has no
instructions that only sm_100 has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")

from bringup.compile.gpu.trial.launches import LaunchRunner
from bringup.compile.kernels.select import products
from bringup.compile.kernels.select.registry import calls_of, split
from bringup.compile.ptx.watch.early import KIND as EARLY
from bringup.compile.ptx.watch.unwritten import KIND as UNWRITTEN
from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.faults import with_a_late_wait
from tests.kernels.graphs import NUMPY, Function, far
from tests.kernels.shipped import Built, buffers_of, built
from tests.kernels.tasks.task import task_of
from tests.kernels.test_products import linear, rms_norm

NEAR = {"bfloat16": 2**-7, "float16": 2**-10}
CAPABILITY = "sm_90"
FEW = 2  # multiprocessors, so that each program has several tiles


@pytest.fixture(
    autouse=True, params=["hopper.linear_specialised", pytest.param("linear_panels", marks=pytest.mark.slow)]
)
def stem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel that computes products of more rows than a tile has."""
    monkeypatch.setattr(products, "PANELS", {CAPABILITY: FEW})
    monkeypatch.setattr(
        products, "SPECIALISED", {CAPABILITY} if request.param == "hopper.linear_specialised" else set()
    )
    return request.param


def stems(f: Function, *results: str, capability: str = CAPABILITY) -> list[str]:
    graph = f.graph(*results)
    return [call.kernel.stem for call in calls_of(graph, graph.groups[0], capability) or ()]


def checked(f: Function, *results: str, states: str = "", near: float) -> Built:
    """Runs the call of a function of one group; nothing is found, and the results are those of float64."""
    whole = built(task_of(f, *results), CAPABILITY)
    assert [call.kernel.stem for call in whole.calls] in (["hopper.linear_specialised"], ["linear_panels"])
    seen, found = whole.run()
    assert seen.findings == []
    expected = f.expected()
    for name in (*results, *states):
        buffer = f.buffers[name]
        array = found[name].view(NUMPY[buffer.dtype]).reshape(buffer.shape)
        assert far(array, expected[name]) < near, name
    return whole


SIZES = [
    pytest.param(129, 264, 270, "bfloat16", id="all-odd"),
    pytest.param(300, 64, 513, "float16", id="one-turn", marks=pytest.mark.slow),
    pytest.param(257, 8, 3, "bfloat16", id="least", marks=pytest.mark.slow),
    pytest.param(256, 320, 512, "bfloat16", id="complete-tiles", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rows", "channels", "columns", "dtype"), SIZES)
def test_product_bias_and_residual(rows: int, channels: int, columns: int, dtype: str) -> None:
    f = Function()
    y = linear(f, f.given("x", (rows, channels), dtype, "value"), columns, dtype=dtype)
    residual = f.given("r", (rows, columns), dtype, "value")
    f.node("aten.add.Tensor", {"out": ((rows, columns), dtype)}, self=residual, other=y, alpha=1)
    whole = checked(f, "out", near=NEAR[dtype])
    (call,) = whole.calls
    assert call.grid == (FEW, 1, 1)


@pytest.mark.parametrize("interleaved", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gate_and_up_of_one_matrix(interleaved: bool) -> None:
    """Two accumulators: halves of the columns, or every second one."""
    f, rows, inner, dtype = Function(), 131, 141, "bfloat16"
    y = linear(f, f.given("x", (rows, 200), dtype, "value"), 2 * inner, dtype=dtype)
    strides, second = ((2 * inner, 2), 1) if interleaved else ((2 * inner, 1), inner)
    gate, up = (View(y.buffer, (rows, inner), strides, offset) for offset in (0, second))
    shape = ((rows, inner), dtype)
    act = f.node("bringup.silu.default", {"act": shape}, x=gate)
    f.node("aten.mul.Tensor", {"out": shape}, self=act, other=up)
    checked(f, "out", near=2 * NEAR[dtype])  # two roundings more


@pytest.mark.slow
def test_gate_and_up_of_two_matrices() -> None:
    f, rows, dtype = Function(), 140, "float16"
    x = f.given("x", (rows, 328), dtype, "value")
    gate, up = (linear(f, x, 72, name, dtype, bias=False) for name in ("gate", "up"))
    shape = ((rows, 72), dtype)
    act = f.node("bringup.gelu_tanh.default", {"act": shape}, x=gate)
    f.node("aten.mul.Tensor", {"out": shape}, self=act, other=up)
    checked(f, "out", near=2 * NEAR[dtype])


@pytest.mark.slow
def test_gelu_of_columns_of_x() -> None:
    """x is a part of wider rows."""
    f, rows, dtype = Function(), 130, "bfloat16"
    f.given("x", (rows, 400), dtype, "value")
    y = linear(f, View("x", (rows, 136), (400, 1), 8), 40, dtype=dtype)
    f.node("bringup.gelu.default", {"out": ((rows, 40), dtype)}, x=y)
    checked(f, "out", near=NEAR[dtype])


def test_columns_that_are_stored_and_cached() -> None:
    """As of GPT-2: the product stays, and some of its columns are rows of caches."""
    f, rows, heads, channels, dtype = Function(), 150, 3, 40, "bfloat16"
    y = linear(f, f.given("x", (rows, 72), dtype, "value"), 3 * heads * channels, "qkv", dtype)
    slots = f.array("step:slots", f.random.permutation(200)[:rows].astype(np.int64), "int64", "step")
    for number, name in enumerate("kv"):
        cache = f.array(name, np.zeros((200, heads, channels), NUMPY[dtype]), dtype, "state")
        view = View(
            y.buffer, (rows, heads, channels), (3 * heads * channels, channels, 1), (number + 1) * heads * channels
        )
        f.node("bringup.write_cache.default", {}, cache_SGK=cache, slots_N=slots, rows_NGK=view)
    checked(f, "qkv", states="kv", near=NEAR[dtype])


@pytest.mark.slow
def test_any_number_of_programs_gives_the_same_bits() -> None:
    f, dtype = Function(), "bfloat16"
    linear(f, f.given("x", (390, 72), dtype, "value"), 520, dtype=dtype)
    task, found = task_of(f, "y"), list[np.ndarray]()
    calls = calls_of(task.graph, task.graph.groups[0], CAPABILITY)
    assert calls
    for programs in (1, 5, 12, 20):  # of 12 tiles
        call = replace(calls[0], grid=(programs, 1, 1))
        seen, results = built(replace(task, calls=(call,)), CAPABILITY).run()
        assert seen.findings == []
        found.append(results["y"])
    assert all(np.array_equal(each, found[0]) for each in found)


def test_a_norm_is_a_launch_of_its_own(stem: str) -> None:
    """The copy engine does not compute; `linear_tile` computes the norm if it multiplies."""
    for rows, channels, wanted in ((130, 64, ["elements", stem]), (128, 64, ["linear_tile"]),
                                   (130, 66, ["linear_tile"])):  # fmt: skip
        f, dtype = Function(), "bfloat16"
        x = f.given("x", (rows, channels), dtype, "value")
        linear(f, rms_norm(f, x, "n", dtype), 48, dtype=dtype)
        graph = split(f.graph("y"), CAPABILITY)
        calls = [call for group in graph.groups for call in calls_of(graph, group, CAPABILITY) or ()]
        assert [call.kernel.stem for call in calls] == wanted


def of_columns(rows: int, channels: int, begin: int, dtype: str) -> Function:
    f = Function()
    f.given("x", (rows, 96), dtype, "value")
    linear(f, View("x", (rows, channels), (96, 1), begin), 48, dtype=dtype)
    return f


@pytest.mark.parametrize(
    ("rows", "channels", "begin", "dtype", "capability", "taken"),
    [
        (129, 64, 8, "bfloat16", "sm_90", True),
        (128, 64, 8, "bfloat16", "sm_90", False),
        (129, 64, 8, "float32", "sm_90", False),
        (129, 64, 8, "bfloat16", "sm_80", False),
        (129, 64, 4, "bfloat16", "sm_90", False),  # x begins at 8 bytes of 16
        (129, 60, 8, "bfloat16", "sm_90", False),  # rows of the weight are 120 bytes apart
    ],
)
def test_what_the_copy_engine_reads(
    stem: str, rows: int, channels: int, begin: int, dtype: str, capability: str, taken: bool
) -> None:
    f = of_columns(rows, channels, begin, dtype)
    assert stems(f, "y", capability=capability) == [stem if taken else "linear_tile"]


def test_reads_and_tensor_maps_before_the_wait_are_found() -> None:
    """All launches of a step write their tensor maps to the same memory."""
    whole = built(task_of(of_columns(130, 64, 0, "bfloat16"), "y"), CAPABILITY)
    seen, _ = whole.run({digest: with_a_late_wait(text) for digest, text in whole.texts.items()})
    early = [finding for finding in seen.findings if finding.startswith(EARLY)]
    assert any("at global scratch + 0" in finding for finding in early), seen.findings
    assert any("at x + " in finding for finding in early)
    assert not any("at y.weight + " in finding for finding in early)


def test_rows_that_nothing_has_written_are_found_with_their_program() -> None:
    """The second program has the rows from 128 on."""
    whole = built(task_of(of_columns(130, 64, 0, "bfloat16"), "y"), CAPABILITY)
    buffers = buffers_of(whole.task, whole.calls)
    buffers["x"] = replace(buffers["x"], parts=np.arange(130) < 129)
    seen, _ = LaunchRunner(whole.plan, whole.texts).watched(whole.calls, buffers)
    (finding,) = seen.findings
    assert finding.startswith(UNWRITTEN)
    assert finding.endswith("64 accesses, first in block 1 at x + 24768 (of 24960 bytes)")
