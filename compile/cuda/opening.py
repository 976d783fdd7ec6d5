"""The device that runs a bundle's kernels: a GPU that fits, or the double."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bringup.compile.cuda.driver import Driver
from bringup.compile.cuda.emulated import EMULATED, without_gpu
from bringup.compile.cuda.kernel_plan import KernelPlan
from bringup.compile.cuda.profile import READ, WRITTEN, Profile
from bringup.diagnostics import BringupError, fail

if TYPE_CHECKING:
    from bringup.compile.cuda.double.double import Double


def driver_module(capability: str = EMULATED[0]) -> Any:
    """`cuda.bindings.driver` with a driver behind it and at least one GPU. Raises BU614 where there is none.

    `capability` is that of the bundle, on which the help depends.
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
        why = "finds no GPU" if int(status) in (0, 100) else f"does not start: {status.name}"
        raise fail("BU614", f"the CUDA driver {why}", help=instead)
    return api


def has_gpu() -> bool:
    """Whether there is a driver with a GPU."""
    try:
        driver_module()
    except BringupError:
        return False
    return True


def open_gpu(plan: KernelPlan) -> Driver:
    """The first GPU. Raises BU614 where there is none, BU615 for another architecture, BU616 for too old a driver."""
    return _checked(plan, Driver(driver_module(plan.capability)))


def check_device(plan: KernelPlan, driver: Driver) -> None:
    """Raises BU615 for a device that cannot run the kernels, BU616 for a driver that is older than they are."""
    major, minor = driver.capability
    instead = without_gpu(plan.capability)
    if not runs_on(plan.target, (major, minor)):
        message = f"the bundle is for {plan.target}, the GPU `{driver.name}` is sm_{major}{minor}"
        raise fail("BU615", message, help=f"compile the model for `cuda:sm_{major}{minor}`; {instead}")
    most = max((each.shared for each in plan.kernels.values()), default=0)
    if most > driver.shared_limit:
        message = f"a kernel needs {most:,} bytes of shared memory, `{driver.name}` has {driver.shared_limit:,} a block"
        raise fail("BU615", message, help=f"compile the model for `cuda:sm_{major}{minor}`")
    needed = cuda_of(plan.ptx_version)
    if driver.version < (needed, 0):
        message = f"the kernels are of CUDA {needed}, the driver is of CUDA {driver.version[0]}.{driver.version[1]}"
        raise fail("BU616", message, help=f"update the driver to one of CUDA {needed}.0 or later; {instead}")


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether a cubin for `sm_80` or `sm_90a` runs on a compute capability.

    A cubin runs on devices of its major number whose minor number is not less (CUDA programming guide, "Binary
    Compatibility"); with an `a` it uses what only that very capability has.
    """
    digits = target.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if target.endswith("a"):
        return capability == (major, minor)
    return capability[0] == major and capability[1] >= minor


def cuda_of(ptx_version: tuple[int, int]) -> int:
    """The CUDA release that has a version of PTX: 12 for 8.x, 13 for 9.x (PTX ISA, "Release Notes").

    A cubin runs with every driver of its release or later (CUDA compatibility, "Minor Version Compatibility").
    """
    return ptx_version[0] + 4


def open_double(plan: KernelPlan, programs: Mapping[str, str], nbytes: int) -> tuple[Driver, Double]:
    """A double of the device that the bundle is for; `programs` has its PTX by digest of the cubin."""
    from bringup.compile.cuda.double.double import Double

    digits = plan.capability.removeprefix("sm_")
    double = Double(programs, (int(digits[:-1]), int(digits[-1])), nbytes)
    return _checked(plan, Driver(double, double.label)), double


def _checked(plan: KernelPlan, driver: Driver) -> Driver:
    """The driver; closed where its device does not fit."""
    with ExitStack() as failed:
        failed.callback(driver.close)
        check_device(plan, driver)
        failed.pop_all()
    return driver


def count_launches(double: Double, profile: Profile) -> None:
    """Has the double count for a profile what each launch moves and executes."""
    from bringup.compile.cuda.double.kernels import Ran
    from bringup.compile.ptx import Bytes

    def note(ran: Ran) -> None:
        counts = {"instructions": float(ran.run.instructions)}
        if (traffic := ran.run.bytes) is not None:
            counts |= {READ: traffic.read, WRITTEN: traffic.written, "sectors a request": traffic.sectors_per_request}
        profile.counted.append(counts)

    double.observers = lambda: [Bytes()]
    double.listeners = [note]
