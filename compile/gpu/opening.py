"""Opens the device that runs a bundle's kernels: a suitable GPU, or the emulated driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bringup.compile.gpu.driver.cuda import CudaDriver
from bringup.compile.gpu.driver.driver import Driver
from bringup.compile.gpu.driver.hip import HipDriver, release_of
from bringup.compile.gpu.driver.hip_library import NAME, HipLibrary, found_library
from bringup.compile.gpu.emulated import EMULATED, without_gpu
from bringup.compile.gpu.kernel_plan import KernelPlan
from bringup.compile.gpu.profile import READ, WRITTEN, Profile
from bringup.compile.kernels.architectures import is_nvidia
from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver

NO_DEVICE = 0, 100  # statuses of initialisation without a GPU, in CUDA and in HIP
OLDEST_HIP = 6, 0  # the first release that loads code objects of version 5 and has hipGetDevicePropertiesR0600


def driver_module(capability: str = EMULATED[0]) -> Any:
    """The module `cuda.bindings.driver`. Raises BU614 without the package, a driver or a GPU.

    `capability` is the architecture of the bundle, on which the help depends.
    """
    instead = without_gpu(capability)
    try:
        api = import_module("cuda.bindings.driver")
    except ImportError as error:
        message = "the package `cuda-bindings`, which calls the CUDA driver, is not installed"
        raise fail("BU614", message, help=f"pip install 'bringup[gpu]'; {instead}") from error
    try:
        status, *_ = api.cuInit(0)
        count = int(api.cuDeviceGetCount()[1]) if int(status) == 0 else 0
    except RuntimeError as error:  # cuda.bindings found no libcuda
        raise fail("BU614", "this machine has no CUDA driver", help=instead) from error
    if count == 0:
        why = "finds no GPU" if int(status) in NO_DEVICE else f"does not start: {status.name}"
        raise fail("BU614", f"the CUDA driver {why}", help=instead)
    return api


def hip_library(instead: str) -> HipLibrary:
    """HIP's runtime. Raises BU614 without a runtime or a GPU, BU616 for a runtime older than `OLDEST_HIP`.

    `instead` is the help for a machine without a GPU.
    """
    loaded = found_library()
    if loaded is None:
        message = f"this machine has no HIP runtime: {NAME} is neither in ROCM_PATH nor in the loader's search path"
        raise fail("BU614", message, help=instead)
    api = HipLibrary(loaded)
    status, version = api.hipRuntimeGetVersion()
    release = release_of(version)
    if status == 0 and release < OLDEST_HIP:
        message = f"the kernels need HIP {_dotted(OLDEST_HIP)}, the runtime is of HIP {_dotted(release)}"
        raise fail("BU616", message, help=f"update ROCm to {_dotted(OLDEST_HIP)} or later; {instead}")
    status = status or api.hipInit(0)[0]
    status, count = (status, 0) if status else api.hipGetDeviceCount()
    if status or not count:
        why = "finds no GPU" if status in NO_DEVICE else f"does not start: {api.hipGetErrorName(status)[1].decode()}"
        raise fail("BU614", f"the HIP runtime {why}", help=instead)
    return api


def open_gpu(plan: KernelPlan) -> Driver:
    """The first GPU. Raises BU614 if there is none, BU615 for another architecture, BU616 for too old a driver."""
    if is_nvidia(plan.capability):
        return _checked(plan, CudaDriver(driver_module(plan.capability)))
    return _checked(plan, HipDriver(hip_library(without_gpu(plan.capability))))


def check_device(plan: KernelPlan, driver: Driver) -> None:
    """Raises BU615 for a device that cannot run the kernels, BU616 for a driver that is older than the kernels."""
    found, instead = driver.architecture, without_gpu(plan.capability)
    family, variable = ("cuda", "CUDA_VISIBLE_DEVICES") if is_nvidia(found) else ("rocm", "HIP_VISIBLE_DEVICES")
    compile_again = f"compile the model for `{family}:{found}`"
    if not runs_on(plan.target, found):
        message = f"the bundle is for {plan.target}, the GPU `{driver.name}` is {found}"
        raise fail("BU615", message, help=f"{compile_again}; {variable}=N selects another GPU; {instead}")
    most = max((each.shared for each in plan.kernels.values()), default=0)
    if most > driver.shared_limit:
        message = f"a kernel needs {most:,} bytes of shared memory, `{driver.name}` has {driver.shared_limit:,} a block"
        raise fail("BU615", message, help=compile_again)
    needed = cuda_of(plan.ptx_version)
    if is_nvidia(plan.capability) and driver.version < (needed, 0):
        message = f"the kernels are of CUDA {needed}, the driver is of CUDA {_dotted(driver.version)}"
        raise fail("BU616", message, help=f"update the driver to one of CUDA {needed}.0 or later; {instead}")


def runs_on(target: str, architecture: str) -> bool:
    """Whether a binary for the target `sm_80`, `sm_90a` or `gfx942` runs on a device's architecture.

    A cubin runs on devices of its major version with an equal or higher minor version (CUDA programming guide, "Binary
    Compatibility"). With an `a` it uses features of one architecture and runs only there, as every hsaco does.
    """
    if not (is_nvidia(target) and is_nvidia(architecture)):
        return target == architecture
    if target.endswith("a"):
        return target.removesuffix("a") == architecture
    ours = target.removesuffix("f")
    return ours[:-1] == architecture[:-1] and int(ours[-1]) <= int(architecture[-1])


def cuda_of(ptx_version: tuple[int, int]) -> int:
    """The major CUDA release of a PTX version: 12 for 8.x, 13 for 9.x (PTX ISA, "Release Notes").

    A cubin runs with every driver of its major release or later (CUDA compatibility, "Minor Version Compatibility").
    """
    return ptx_version[0] + 4


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"


def open_emulated(plan: KernelPlan, programs: Mapping[str, str], nbytes: int) -> tuple[Driver, EmulatedDriver]:
    """An emulated device of the bundle's architecture, with `nbytes` of memory.

    `programs`: the PTX of its kernels, by the SHA-256 of their cubins. Raises as `check_device`.
    """
    from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver

    digits = plan.capability.removeprefix("sm_")
    emulated = EmulatedDriver(programs, (int(digits[:-1]), int(digits[-1])), nbytes)
    return _checked(plan, CudaDriver(emulated, emulated.label)), emulated


def _checked(plan: KernelPlan, driver: Driver) -> Driver:
    """The driver, which is closed if its device cannot run the kernels."""
    with ExitStack() as failed:
        failed.callback(driver.close)
        check_device(plan, driver)
        failed.pop_all()
    return driver


def count_launches(emulated: EmulatedDriver, profile: Profile) -> None:
    """Makes the emulated driver count the bytes and the instructions of each launch for a profile."""
    from bringup.compile.gpu.emulated_driver.kernels import Ran
    from bringup.compile.ptx import Bytes

    def note(ran: Ran) -> None:
        counts = {"instructions": float(ran.run.instructions)}
        if (traffic := ran.run.bytes) is not None:
            counts |= {READ: traffic.read, WRITTEN: traffic.written, "sectors a request": traffic.sectors_per_request}
        profile.counted.append(counts)

    emulated.observers = lambda: [Bytes()]
    emulated.listeners = [note]
