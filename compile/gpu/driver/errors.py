"""Errors for the status codes of CUDA's driver and HIP's runtime. The codes used here are equal in both."""

from __future__ import annotations

from typing import Any

from bringup.compile.gpu.driver.names import Names
from bringup.diagnostics import BringupError, fail

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory
_STICKY = "the program's memory on the device is lost; start again"
_FINDS = "`bringup kernels test` of a bundle for `cuda:sm_80` to `cuda:sm_90` finds which"
_HELP = {
    218: "the emulator does not support this PTX: `--executor gpu` or `--executor reference` runs the bundle",
    209: "the kernels are for another GPU: compile the model again for this one",
    700: f"a kernel accessed memory outside its buffers; {_FINDS}",
    716: f"a kernel accessed memory at an address that is not aligned; {_FINDS}",  # only of CUDA
    719: f"a kernel failed; {_STICKY}",
}


def checked(api: Any, names: Names, call: str, result: tuple[Any, ...]) -> Any:
    """The outputs of a call without its status: None, one value, or a tuple.

    Raises BU618 if the device is out of memory, and BU617 with name and text of any other status but success.
    """
    status, *values = result
    if int(status) != 0:
        raise failure(api, names, call, status)
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def failure(api: Any, names: Names, call: str, status: Any) -> BringupError:
    """The error for a status that the function `call` returned: BU618 or BU617."""
    name, text = (_text(getattr(api, each)(status)) for each in (names.error_name, names.error_text))
    if int(status) == OUT_OF_MEMORY and call == names.pin:
        help = "end other programs, or raise the memory limit of the container"
        return fail("BU618", f"out of host memory: {call} returned {name}", help=help)
    if int(status) == OUT_OF_MEMORY:
        help = "compile with a smaller --max-seq-len or --max-batch-size, or use a GPU with more memory"
        return fail("BU618", f"out of device memory: {call} returned {name}", help=help)
    message = f"{call} returned {name or int(status)}{f': {text}' if text else ''}"
    return fail("BU617", message, help=_HELP.get(int(status), "`bringup doctor` shows the driver and its version"))


def _text(result: tuple[Any, ...]) -> str:
    found = result[1] if int(result[0]) == 0 else b""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found or "")
