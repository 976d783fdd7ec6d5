"""The driver's functions on the emulated driver: what a launcher may do, and what the driver refuses."""

from __future__ import annotations

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bringup.compile.gpu.driver.cuda import CudaDriver
from bringup.compile.gpu.driver.driver import Arguments, Function, Stream
from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver
from bringup.compile.gpu.upload import upload
from bringup.compile.kernels.compiled import Compiled
from bringup.diagnostics import BringupError
from tests.cuda.kernels import compiled

COUNT, FACTOR = 1000, 3.0
GRID = (-(-COUNT // 128), 1, 1)


class Setup:
    """A driver over an emulated driver, with one kernel and its two arrays."""

    def __init__(self, kernel: Compiled, capability: tuple[int, int] = (9, 0)) -> None:
        self.kernel = kernel
        programs = {hashlib.sha256(kernel.binary).hexdigest(): kernel.assembly}
        self.emulated = EmulatedDriver(programs, capability, 1 << 24)
        self.driver = CudaDriver(self.emulated, self.emulated.label)
        self.driver.use()
        self.stream: Stream = self.driver.stream()
        self.host = self.driver.pinned(4 * COUNT).view(np.float32)
        self.host[:] = np.arange(COUNT)
        self.x, self.y = self.driver.allocate(4 * COUNT, "x"), self.driver.allocate(4 * COUNT, "y")
        self.driver.copy_in(self.x, self.host, self.stream)
        self.driver.zero(self.y, 4 * COUNT, self.stream)
        self.module = self.driver.load(kernel.binary)

    def function(self, threads: int = 0, shared: int = 0) -> Function:
        given = {"threads": threads or self.kernel.threads, "shared": shared or self.kernel.shared}
        return self.driver.function(self.module, self.kernel.name, **given)

    def arguments(self, count: int = COUNT) -> Arguments:
        return Arguments([struct.pack("<Q", a) for a in (self.x, self.y)] + [struct.pack("<i", count)]
                         + [struct.pack("<f", FACTOR), struct.pack("<Q", 0), struct.pack("<Q", 0)])  # fmt: skip

    def launch(self, function: Function | None = None) -> None:
        self.driver.launch(function or self.function(), GRID, self.arguments(), self.stream)

    def result(self) -> np.ndarray:
        out = self.driver.pinned(4 * COUNT).view(np.float32)
        self.driver.copy_out(out, self.y, self.stream)
        return out


def test_nothing_runs_before_it_is_waited_for() -> None:
    setup = Setup(compiled("scale"))
    setup.launch()
    found = setup.result()
    assert not found.any()
    setup.driver.wait(setup.stream)
    np.testing.assert_array_equal(found, FACTOR * np.arange(COUNT))


def test_a_graph_runs_again_with_new_data() -> None:
    setup = Setup(compiled("scale"))
    function = setup.function()
    setup.driver.wait(setup.stream)
    with setup.driver.capture(setup.stream) as graphs:
        setup.driver.copy_in(setup.x, setup.host, setup.stream)
        setup.launch(function)
        found = setup.result()
    setup.driver.wait(setup.stream)
    assert not found.any()
    for offset in (0, 7):
        setup.host[:] = np.arange(COUNT) + offset
        setup.driver.replay(graphs[0], setup.stream)
        setup.driver.wait(setup.stream)
        np.testing.assert_array_equal(found, FACTOR * (np.arange(COUNT) + offset))


def test_a_kernel_stores_in_mapped_memory() -> None:
    setup = Setup(compiled("scale"))
    raw, setup.y = setup.driver.mapped(4 * COUNT, "the host's")
    found = raw.view(np.float32)
    found[:] = 0
    setup.launch()
    assert not found.any()
    setup.driver.wait(setup.stream)
    np.testing.assert_array_equal(found, FACTOR * np.arange(COUNT))
    setup.driver.unpin(raw)
    setup.launch()
    with pytest.raises(BringupError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*the host's.*freed"):
        setup.driver.wait(setup.stream)


def test_a_store_past_mapped_memory_is_found() -> None:
    setup = Setup(compiled("unchecked"))
    setup.x = setup.driver.allocate(4 * 128 * GRID[0], "x")
    setup.y = setup.driver.mapped(4 * COUNT, "the host's")[1]
    setup.launch()
    with pytest.raises(BringupError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*the host's"):
        setup.driver.wait(setup.stream)


def test_pinned_memory_that_is_not_mapped_has_no_device_address() -> None:
    setup = Setup(compiled("scale"))
    status, *_ = setup.emulated.cuMemHostGetDevicePointer(setup.host.ctypes.data, 0)
    assert status.name == "CUDA_ERROR_INVALID_VALUE"


def test_events_have_times() -> None:
    setup = Setup(compiled("scale"))
    start, end = setup.driver.event(), setup.driver.event()
    setup.driver.record(start, setup.stream)
    setup.launch()
    setup.driver.record(end, setup.stream)
    setup.driver.wait_for(end)
    assert setup.driver.seconds(start, end) > 0
    untimed = setup.driver.event(timed=False)
    setup.driver.record(untimed, setup.stream)
    setup.driver.wait_for(untimed)
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_HANDLE: an event does not record its time"):
        setup.driver.seconds(start, untimed)


def test_properties_of_the_device() -> None:
    driver = Setup(compiled("scale", 80), (8, 0)).driver
    assert (driver.capability, driver.version, driver.shared_limit) == ((8, 0), (13, 0), 166_912)
    assert "sm_80" in driver.name


def test_an_access_out_of_bounds_ends_the_context() -> None:
    setup = Setup(compiled("unchecked"))
    setup.launch()
    with pytest.raises(BringupError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*\bx\b"):
        setup.driver.wait(setup.stream)
    with pytest.raises(BringupError, match="cuMemAlloc returned CUDA_ERROR_ILLEGAL_ADDRESS"):
        setup.driver.allocate(16)


def test_memory_that_was_freed_too_early() -> None:
    setup = Setup(compiled("scale"))
    setup.driver.free(setup.x)
    setup.launch()
    with pytest.raises(BringupError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        setup.driver.wait(setup.stream)


def test_refused_calls() -> None:
    setup = Setup(compiled("scale"))
    driver = setup.driver
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_VALUE: a block of 64 threads"):
        setup.launch(setup.function(threads=64))
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_VALUE: attribute"):
        setup.function(shared=300_000)
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_VALUE: a grid"):
        driver.launch(setup.function(), (1, 70_000, 1), setup.arguments(), setup.stream)
    with pytest.raises(BringupError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        driver.load(setup.kernel.binary + b"\0")
    with pytest.raises(BringupError, match="CUDA_ERROR_NOT_FOUND"):
        driver.function(setup.module, "other", threads=128, shared=0)
    with pytest.raises(BringupError, match=r"CUDA_ERROR_INVALID_VALUE.*pinned"):
        driver.copy_in(setup.x, np.zeros(4, np.float32), setup.stream)
    with pytest.raises(BringupError, match=r"out of device memory.*CUDA_ERROR_OUT_OF_MEMORY") as caught:
        driver.allocate(1 << 30)
    assert caught.value.findings[0].code == "BU618"
    with pytest.raises(BringupError, match="out of host memory: cuMemHostAlloc returned CUDA_ERROR_OUT_OF_MEMORY"):
        driver.pinned(1 << 62)
    driver.wait(setup.stream)  # none of them ended the context


def test_waiting_during_a_capture() -> None:
    setup = Setup(compiled("scale"))
    setup.driver.wait(setup.stream)
    with (
        pytest.raises(BringupError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
        setup.driver.capture(setup.stream),
    ):
        setup.driver.wait(setup.stream)
    setup.launch()
    setup.driver.wait(setup.stream)


def test_an_interrupted_capture_leaves_no_graph() -> None:
    setup = Setup(compiled("scale"))
    before = held(setup.emulated)
    with pytest.raises(KeyboardInterrupt), setup.driver.capture(setup.stream):
        raise KeyboardInterrupt
    assert held(setup.emulated) == before


def test_another_driver_is_closed_during_a_capture() -> None:
    """As by garbage collection in the thread that captures."""
    setup = Setup(compiled("scale"))
    other, function, before = CudaDriver(setup.emulated), setup.function(), held(setup.emulated)
    other.allocate(16)
    with setup.driver.capture(setup.stream) as graphs:
        other.close()
        setup.launch(function)
    assert held(setup.emulated) == (before[0] + 1, *before[1:])
    setup.driver.replay(graphs[0], setup.stream)
    found = setup.result()
    setup.driver.wait(setup.stream)
    assert found[1] == FACTOR


def test_a_cubin_of_other_parameters() -> None:
    kernel = compiled("scale")
    other = kernel.assembly.replace(".param .b32 scale_param_2", ".param .b64 scale_param_2")
    if other == kernel.assembly:
        other = kernel.assembly.replace(".param .u32 scale_param_2", ".param .u64 scale_param_2")
    driver = CudaDriver(EmulatedDriver({hashlib.sha256(kernel.binary).hexdigest(): other}, (9, 0), 1 << 20))
    driver.use()
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_IMAGE: cubin and PTX"):
        driver.load(kernel.binary)


def held(emulated: EmulatedDriver) -> tuple[int, int, int]:
    """Streams, events, graphs and modules that live; allocations; pinned buffers."""
    return len(emulated._handles), len(emulated._sizes), len(emulated._host)


def test_close_gives_everything_back() -> None:
    setup = Setup(compiled("scale"))
    setup.driver.record(setup.driver.event(), setup.stream)
    setup.driver.wait(setup.stream)
    with setup.driver.capture(setup.stream):
        setup.driver.copy_in(setup.x, setup.host, setup.stream)
    assert all(held(setup.emulated))
    ran: list[object] = []
    setup.emulated.listeners.append(ran.append)
    setup.launch()  # is not waited for
    with ThreadPoolExecutor(1) as threads:
        threads.submit(setup.driver.close).result()
        assert int(threads.submit(setup.emulated.cuCtxGetCurrent).result()[1]) == 0
    assert held(setup.emulated) == (0, 0, 0)
    assert len(ran) == 1
    with pytest.raises(BringupError, match="the executor is closed"):
        setup.driver.use()


def test_close_goes_on_where_a_call_fails() -> None:
    setup = Setup(compiled("scale"))
    refused: list[object] = []

    def refuse(address: object) -> tuple[object, None]:
        refused.append(address)
        return setup.emulated.CUresult(1), None

    setup.emulated.cuMemFree = refuse
    setup.driver.close()
    assert len(refused) == 2
    assert held(setup.emulated) == (0, 2, 0)


def test_an_event_is_given_back() -> None:
    setup = Setup(compiled("scale"))
    before = held(setup.emulated)
    setup.driver.forget(setup.driver.event())
    assert held(setup.emulated) == before


def test_a_thread_without_a_context() -> None:
    setup = Setup(compiled("scale"))

    def allocate(use: bool) -> int:
        if use:
            setup.driver.use()
        return setup.driver.allocate(16)

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_CONTEXT"):
            threads.submit(allocate, False).result()
        assert threads.submit(allocate, True).result()


def test_views_of_one_memory_in_another_order() -> None:
    setup = Setup(compiled("scale"))
    dense = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = held(setup.emulated)
    found = upload(setup.driver, setup.stream, {"dense": dense, "turned": dense.T, "same": dense.reshape(6)})
    assert found["same"] == found["dense"]
    for name, wanted in (("dense", dense), ("turned", dense.T)):
        np.testing.assert_array_equal(setup.emulated.device.read(found[name], np.float32, wanted.shape), wanted)
    assert held(setup.emulated) == (before[0], before[1] + 2, before[2])


def test_ptx_that_the_emulator_does_not_know() -> None:
    kernel = compiled("scale")
    other = kernel.assembly.replace("ret;", "griddepcontrol.tcgen05;", 1)
    driver = CudaDriver(EmulatedDriver({hashlib.sha256(kernel.binary).hexdigest(): other}, (9, 0), 1 << 20))
    driver.use()
    with pytest.raises(BringupError, match="CUDA_ERROR_INVALID_PTX") as caught:
        driver.load(kernel.binary)
    assert "--executor reference" in str(caught.value.findings[0].help)
    assert "doctor" not in str(caught.value.findings[0].help)
