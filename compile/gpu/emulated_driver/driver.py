"""EmulatedDriver: a device that executes PTX on the CPU, with the functions of `cuda.bindings.driver`."""

from __future__ import annotations

from typing import Any

from bringup.compile.gpu.emulated_driver.kernels import Kernels
from bringup.compile.gpu.emulated_driver.status import INVALID_VALUE, Refused, call

VERSION = 13_000  # of the driver: CUDA 13.0
_CONTEXT = 0xC0


class EmulatedDriver(Kernels):
    """cuInit, cuDevice… and cuCtx…. Each base class has the functions of one subject."""

    @call
    def cuInit(self, flags: int) -> None:
        pass

    @call
    def cuDriverGetVersion(self) -> int:
        return VERSION

    @call
    def cuDeviceGetCount(self) -> int:
        return 1

    @call
    def cuDeviceGet(self, number: int) -> Any:
        if number:
            raise Refused(101, f"there is no device {number}")
        return self.CUdevice(0)

    @call
    def cuDeviceGetName(self, length: int, device: Any) -> bytes:
        major, minor = self.capability
        return f"PTX on the CPU, sm_{major}{minor}".encode()[:length]

    @call
    def cuDeviceGetAttribute(self, attribute: Any, device: Any) -> int:
        known = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.shared_limit,
        }
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        if name not in known:
            raise Refused(INVALID_VALUE, f"the emulated driver has no attribute {name}")
        return known[name]

    @call
    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return self.CUcontext(_CONTEXT)

    @call
    def cuDevicePrimaryCtxRelease(self, device: Any) -> None:
        pass

    @call
    def cuCtxGetCurrent(self) -> Any:
        return self.CUcontext(getattr(self.current, "context", 0))

    @call
    def cuCtxSetCurrent(self, context: Any) -> None:
        if int(context) not in (0, _CONTEXT):
            raise Refused(INVALID_VALUE, "no context")
        self.current.context = int(context)
