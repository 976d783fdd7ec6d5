"""What the driver's results mean for a user."""

from __future__ import annotations

from typing import Any

from bringup.diagnostics import BringupError, fail

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_STICKY = "the program's memory on the device is lost; start again"
_HELP = {
    218: "the emulator does not know this PTX: `--executor gpu` or `--executor reference` runs the bundle",
    209: "the kernels are for another GPU: compile the model again for this one",
    700: "a kernel accessed memory that is not its own; `bringup kernels test BUNDLE` finds which",
    719: f"a kernel failed; {_STICKY}",
}


def checked(api: Any, call: str, result: tuple[Any, ...]) -> Any:
    """What a driver's function gives besides its status: nothing, one value, or a tuple.

    Raises BU618 where the device has no memory left, BU617 for every other status than success, with the driver's
    name and text of it.
    """
    status, *values = result
    if int(status) != 0:
        raise failure(api, call, status)
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def failure(api: Any, call: str, status: Any) -> BringupError:
    """The error for a status that a driver's function gave."""
    name, text = _text(api.cuGetErrorName(status)), _text(api.cuGetErrorString(status))
    if int(status) == OUT_OF_MEMORY:
        help = "compile with a smaller --max-seq-len or --max-batch-size, or use a GPU with more memory"
        return fail("BU618", f"the device has no memory left: {call} gave {name}", help=help)
    message = f"{call} gave {name or int(status)}{f': {text}' if text else ''}"
    return fail("BU617", message, help=_HELP.get(int(status), "`bringup doctor` shows the driver and its version"))


def _text(result: tuple[Any, ...]) -> str:
    found = result[1] if int(result[0]) == 0 else b""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found or "")
