"""HipDriver: `Driver` on HIP's runtime, for AMD GPUs. Its `api` is a `HipLibrary`."""

from __future__ import annotations

from typing import Any

from bringup.compile.gpu.driver.driver import Arguments, Driver, Function, Grid, Module, Stream
from bringup.compile.gpu.driver.names import HIP

SHARED_OF_BLOCK = 74  # hipDeviceAttributeMaxSharedMemoryPerBlock


class HipDriver(Driver):
    """The first device. `version` is that of the runtime: (7, 1).

    Shared memory is the local data share (LDS); a kernel may use all of it without setting an attribute. A kernel never
    starts before the previous one in the stream has ended, so `early` has no effect.
    """

    def __init__(self, api: Any) -> None:
        self._images: dict[int, bytes] = {}
        super().__init__(api, HIP)

    def _begin(self) -> tuple[int, int]:
        return 0, 0

    def _end(self) -> None:
        """Does nothing: all threads of a process share the device, and a reset would affect the others."""

    @property
    def version(self) -> tuple[int, int]:
        return release_of(int(self._call(HIP.version)))

    @property
    def architecture(self) -> str:
        """`gfx942` for `gfx942:sramecc+:xnack-`: kernels are compiled for both settings of these features."""
        name = self._call("hipGetDevicePropertiesR0600", self._device).gcnArchName
        return name.decode(errors="replace").partition(":")[0]

    @property
    def shared_limit(self) -> int:
        return self._attribute(SHARED_OF_BLOCK)

    def load(self, image: bytes) -> Module:
        """Loads the bytes of an hsaco, and keeps them in memory as long as this object.

        HSA's reader of code objects requires them while the module is loaded
        (`hsa_code_object_reader_create_from_memory`).
        """
        module = super().load(image)
        self._images[int(module)] = image  # pyright: ignore[reportArgumentType]  # a handle is an integer
        return module

    def _prepare(self, handle: Any, shared: int) -> None:
        """Does nothing: all kernels of a module are loaded with it, and shared memory needs no attribute."""

    def launch(
        self, function: Function, grid: Grid, arguments: Arguments, stream: Stream, *, early: bool = False
    ) -> None:
        """Launches a kernel. The runtime reads sizes and offsets of arguments from the hsaco, and adds hidden ones."""
        block = function.threads, 1, 1
        self._call(
            "hipModuleLaunchKernel", function.handle, *grid, *block, function.shared, stream, arguments.address, None
        )


def release_of(version: int) -> tuple[int, int]:
    """Major and minor release of the runtime's version number: (7, 1) for 70125424."""
    return version // 10_000_000, version // 100_000 % 100
