"""Which architectures the emulator runs, and what runs a bundle where there is no GPU for it."""

from __future__ import annotations

# Later ones have instructions that it does not know: tcgen05, and arithmetic on pairs of float32.
EMULATED = ("sm_80", "sm_86", "sm_89", "sm_90")


def without_gpu(capability: str) -> str:
    """The help for a bundle of an architecture."""
    if capability in EMULATED:
        return "`--executor emulate` runs the bundle without a GPU, slowly"
    return f"`--executor reference` runs the launches by torch; the emulator does not run kernels for {capability}"
