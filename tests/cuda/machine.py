"""The machine that runs the tests."""

from __future__ import annotations

from bringup.compile.gpu.opening import driver_module
from bringup.diagnostics import BringupError


def has_gpu() -> bool:
    """Whether this machine has CUDA's driver and a GPU."""
    try:
        driver_module()
    except BringupError:
        return False
    return True
