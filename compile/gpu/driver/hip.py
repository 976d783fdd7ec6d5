"""HipDriver: `Driver` by HIP's runtime, for AMD's GPUs. Its `api` is a `HipLibrary`."""

from __future__ import annotations

from typing import Any

from bringup.compile.gpu.driver.driver import Arguments, Driver, Function, Grid, Module, Stream
from bringup.compile.gpu.driver.names import HIP

SHARED_OF_BLOCK = 74  # hipDeviceAttributeMaxSharedMemoryPerBlock


class HipDriver(Driver):
    """The first device. `version` is that of the runtime: (7, 1).

    Shared memory is the local data share (LDS), all of which a kernel may have without asking. No kernel starts before
    the one before it in the stream has ended: `early` changes nothing.
    """

    def __init__(self, api: Any) -> None:
        self._images: dict[int, bytes] = {}
        super().__init__(api, HIP)

    def _begin(self) -> int:
        return 0

    def _make_current(self) -> None:
        self._call("hipSetDevice", self._device)

    def _end(self) -> None:
        """Nothing: all threads of a process share a device, and a reset would take it from the others."""

    @property
    def version(self) -> tuple[int, int]:
        return release_of(int(self._call(HIP.version)))

    @property
    def architecture(self) -> str:
        """`gfx942` of `gfx942:sramecc+:xnack-`: kernels are compiled for either setting of the features that follow."""
        name = self._call("hipGetDevicePropertiesR0600", self._device).gcnArchName
        return name.decode(errors="replace").partition(":")[0]

    @property
    def shared_limit(self) -> int:
        return self._attribute(SHARED_OF_BLOCK)

    def load(self, image: bytes) -> Module:
        """An hsaco, which stays in memory: HSA's reader of code objects (`hsa_code_object_reader_create_from_memory`)
        needs the bytes as long as what it loaded."""
        module = super().load(image)
        self._images[int(module)] = image  # pyright: ignore[reportArgumentType]  # a handle is a number
        return module

    def _prepare(self, handle: Any, shared: int) -> None:
        """Nothing: a module is loaded whole, and shared memory is not limited any further."""

    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        """The runtime finds size and place of each argument in the hsaco, and adds hidden ones itself."""
        block = function.threads, 1, 1
        self._call(
            "hipModuleLaunchKernel", function.handle, *grid, *block, function.shared, stream, arguments.address, None
        )


def release_of(version: int) -> tuple[int, int]:
    """Of a version as the runtime gives it: (7, 1) of 70125424."""
    return version // 10_000_000, version // 100_000 % 100
