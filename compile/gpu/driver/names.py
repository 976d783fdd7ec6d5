"""Names of the functions that CUDA's driver API and HIP's runtime share, with equal arguments and results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The name of each function in one of the two APIs."""

    start: str
    current: str
    make_current: str
    version: str
    device_name: str
    attribute: str
    allocate: str
    free: str
    pin: str
    unpin: str
    mapped: str
    copy_in: str
    copy_out: str
    fill: str
    load: str
    unload: str
    function: str
    stream: str
    end_stream: str
    wait: str
    event: str
    end_event: str
    record: str
    wait_for: str
    elapsed: str
    capture: str
    end_capture: str
    instantiate: str
    end_captured: str
    end_graph: str
    replay: str
    error_name: str
    error_text: str

    @property
    def given_back(self) -> tuple[str, ...]:
        """Functions that release a resource, in an order in which users are released before what they use."""
        return self.end_graph, self.end_event, self.end_stream, self.unload, self.free, self.unpin


CUDA = Names(
    start="cuInit",
    current="cuCtxGetCurrent",
    make_current="cuCtxSetCurrent",
    version="cuDriverGetVersion",
    device_name="cuDeviceGetName",
    attribute="cuDeviceGetAttribute",
    allocate="cuMemAlloc",
    free="cuMemFree",
    pin="cuMemHostAlloc",
    unpin="cuMemFreeHost",
    mapped="cuMemHostGetDevicePointer",
    copy_in="cuMemcpyHtoDAsync",
    copy_out="cuMemcpyDtoHAsync",
    fill="cuMemsetD8Async",
    load="cuModuleLoadData",
    unload="cuModuleUnload",
    function="cuModuleGetFunction",
    stream="cuStreamCreate",
    end_stream="cuStreamDestroy",
    wait="cuStreamSynchronize",
    event="cuEventCreate",
    end_event="cuEventDestroy",
    record="cuEventRecord",
    wait_for="cuEventSynchronize",
    elapsed="cuEventElapsedTime",
    capture="cuStreamBeginCapture",
    end_capture="cuStreamEndCapture",
    instantiate="cuGraphInstantiate",
    end_captured="cuGraphDestroy",
    end_graph="cuGraphExecDestroy",
    replay="cuGraphLaunch",
    error_name="cuGetErrorName",
    error_text="cuGetErrorString",
)

HIP = Names(
    start="hipInit",
    current="hipGetDevice",
    make_current="hipSetDevice",
    version="hipRuntimeGetVersion",
    device_name="hipDeviceGetName",
    attribute="hipDeviceGetAttribute",
    allocate="hipMalloc",
    free="hipFree",
    pin="hipHostMalloc",
    unpin="hipHostFree",
    mapped="hipHostGetDevicePointer",
    copy_in="hipMemcpyHtoDAsync",
    copy_out="hipMemcpyDtoHAsync",
    fill="hipMemsetD8Async",
    load="hipModuleLoadData",
    unload="hipModuleUnload",
    function="hipModuleGetFunction",
    stream="hipStreamCreateWithFlags",
    end_stream="hipStreamDestroy",
    wait="hipStreamSynchronize",
    event="hipEventCreateWithFlags",
    end_event="hipEventDestroy",
    record="hipEventRecord",
    wait_for="hipEventSynchronize",
    elapsed="hipEventElapsedTime",
    capture="hipStreamBeginCapture",
    end_capture="hipStreamEndCapture",
    instantiate="hipGraphInstantiateWithFlags",
    end_captured="hipGraphDestroy",
    end_graph="hipGraphExecDestroy",
    replay="hipGraphLaunch",
    error_name="hipGetErrorName",
    error_text="hipGetErrorString",
)
