"""The threads that run a step: launches in order, however many threads and parts there are, and an end to all."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from bringup.compile.llvm.ir.machine import host
from bringup.compile.llvm.ir.threads import Word
from bringup.compile.llvm.module import Loaded, compiled, texts_of, threads_text
from bringup.compile.llvm.pool import LEAST_PART, PART, PARTS_EACH, Pool, part_count
from bringup.compile.llvm.select.registry import calls_of
from tests.kernels.graphs import Function

WIDTH, TIMES = 64, 300


@pytest.fixture(scope="module")
def reverse() -> tuple[Loaded, int]:
    """y = x reversed, plus 1: every thread reads what another has written in the launch before."""
    function = Function()
    x = function.given("x", (WIDTH,))
    order = function.array("order", np.arange(WIDTH)[::-1].copy(), "int64", "step")
    turned = function.node("aten.index_select.default", {"t": ((WIDTH,), "float32")}, self=x, dim=0, index=order)
    function.node("aten.add.Tensor", {"y": ((WIDTH,), "float32")}, self=turned, other=1.0, alpha=1)
    graph = function.graph("y")
    calls = calls_of(graph, graph.groups[0], host())
    assert calls is not None
    (call,) = calls
    assert [getattr(each, "buffer", None) for each in call.arguments] == ["order", "x", "y"]
    texts = zip((*texts_of([call.kernel], host()), threads_text(host())), (False, True, False), strict=True)
    loaded = Loaded([compiled(text, host(), vectorise=vectorise) for text, vectorise in texts], host())
    return loaded, loaded.address(call.kernel.name)


@pytest.mark.parametrize("spins", [0, 50, 100_000])
@pytest.mark.parametrize("threads", [1, 2, 9])
def test_a_launch_begins_when_all_threads_have_ended_the_last(reverse, threads: int, spins: int) -> None:
    """Also where threads outnumber processors, and whether those that wait sleep or not."""
    loaded, kernel = reverse
    order = np.arange(WIDTH, dtype=np.int64)[::-1].copy()
    a, b = np.arange(WIDTH, dtype=np.float32), np.zeros(WIDTH, np.float32)
    pairs = [(order, a, b), (order, b, a)]
    arguments = [np.array([each.ctypes.data for each in arrays], np.uint64) for arrays in pairs]
    count = TIMES if spins < 100_000 or threads < 3 else 20  # each waits for all others to be given a processor
    launches = np.array([(kernel, arguments[n % 2].ctypes.data, 1 + n % 5) for n in range(count)], np.uint64)
    pool = Pool(loaded, threads, 1)
    pool._job[Word.SPINS] = spins
    for _ in range(3):
        pool.run(launches.ctypes.data, len(launches))
    np.testing.assert_array_equal(a, np.arange(WIDTH) + 3 * count)
    pool.close()
    pool.close()
    with pytest.raises(AssertionError, match="the pool is closed"):
        pool.run(launches.ctypes.data, len(launches))


def test_one_thread_ends_launches_of_many_parts(reverse) -> None:
    """It takes every part that no other thread has begun, up to the most that a launch can have."""
    loaded, kernel = reverse
    order, x, y = (
        np.arange(WIDTH, dtype=np.int64)[::-1].copy(),
        np.arange(WIDTH, dtype=np.float32),
        np.zeros(WIDTH, "f4"),
    )
    arguments = np.array([each.ctypes.data for each in (order, x, y)], np.uint64)
    pool = Pool(loaded, 1, 1)
    for parts in (1, 2, WIDTH, 65535):
        y[...] = 0
        launch = np.array([kernel, arguments.ctypes.data, parts], np.uint64)
        pool.run(launch.ctypes.data, 1)
        np.testing.assert_array_equal(y, np.arange(WIDTH)[::-1] + 1)
    pool.close()


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_small_launches_are_of_one_part_and_large_ones_of_some_for_each_thread(threads: int) -> None:
    assert part_count(LEAST_PART - 1, threads) == 1
    assert part_count(threads * LEAST_PART, threads) == threads
    assert part_count(1 << 40, threads) == (PARTS_EACH * threads if threads > 1 else 1)
    assert part_count(threads * PART, threads) == threads


def test_threads_end_with_the_last_reference(reverse) -> None:
    gc.collect()  # executors of other tests
    before = threading.active_count()
    pool = Pool(reverse[0], 4, 1)
    assert threading.active_count() == before + 3
    del pool
    gc.collect()
    assert threading.active_count() == before
