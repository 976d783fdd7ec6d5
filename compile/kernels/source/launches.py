"""Programmatic dependent launch: on sm_90 and later, a launch may start while the previous one still runs.

Its programs may fetch memory that no earlier launch of the step writes (the first launch of a step waits for the step
before), and wait before they access any other memory (CUDA programming
guide, "Programmatic Dependent Launch and Synchronization"). All kernels wait, so after its wait a launch knows that all
earlier launches have ended, not only the previous one. On other architectures a launch starts after the previous one
has ended, and both functions do nothing. EARLY states which applies; worker.py passes it to every kernel.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Allows the next launch to start once all programs of this one have executed this."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Waits until the previous launch has ended and its stores are visible."""
    if EARLY:
        gdc_wait()
