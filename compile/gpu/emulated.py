"""The architectures that the emulator supports, and the help for a bundle without a suitable GPU."""

from __future__ import annotations

# Later architectures have instructions that it does not support: tcgen05, and arithmetic on pairs of float32.
EMULATED = ("sm_80", "sm_86", "sm_89", "sm_90")


def without_gpu(capability: str) -> str:
    """The help for a bundle of an architecture (`sm_90`, `gfx942`) on a machine without a suitable GPU."""
    if capability in EMULATED:
        return "`--executor emulate` runs the bundle without a GPU, slowly"
    return f"`--executor reference` runs the launches by torch; the emulator does not run kernels for {capability}"
