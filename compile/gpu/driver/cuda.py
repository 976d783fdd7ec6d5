"""CudaDriver: `Driver` on CUDA's driver API.

Its `api` is the module `cuda.bindings.driver`, or `EmulatedDriver`, which has the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.compile.gpu.driver.driver import RELAXED, Arguments, Driver, Function, Grid, Stream
from bringup.compile.gpu.driver.names import CUDA

STATIC_SHARED = 49_152  # bytes of shared memory that need no attribute of the function (CUDA programming guide)


class CudaDriver(Driver):
    """The first device, with its primary context. `version` is that of CUDA: (13, 0)."""

    def __init__(self, api: Any, label: Callable[[str], None] | None = None) -> None:
        super().__init__(api, CUDA, label)

    def _begin(self) -> tuple[Any, Any]:
        device = self._call("cuDeviceGet", 0)
        return device, self._call("cuDevicePrimaryCtxRetain", device)

    def _end(self) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._device)

    @property
    def version(self) -> tuple[int, int]:
        number = int(self._call(CUDA.version))
        return number // 1000, number % 1000 // 10

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0) for sm_90."""
        return self._fact("COMPUTE_CAPABILITY_MAJOR"), self._fact("COMPUTE_CAPABILITY_MINOR")

    @property
    def architecture(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def shared_limit(self) -> int:
        return self._fact("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def _fact(self, name: str) -> int:
        return self._attribute(getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"))

    def _relaxed(self) -> Any:
        return self._api.CUstreamCaptureMode(RELAXED)

    def _prepare(self, handle: Any, shared: int) -> None:
        if shared > STATIC_SHARED:
            key = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", handle, key, shared)
        self._call("cuFuncLoad", handle)

    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        config = self._api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = function.threads, 1, 1
        config.sharedMemBytes, config.hStream = function.shared, stream
        if early and function.waits:
            config.attrs, config.numAttrs = [self._early()], 1
        self._call("cuLaunchKernelEx", config, function.handle, arguments.address, 0)

    def _early(self) -> Any:
        """The launch attribute of a secondary kernel in programmatic dependent launch (CUDA programming guide)."""
        attribute = self._api.CUlaunchAttribute()
        attribute.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        return attribute
