"""Launches one after the other: from sm_90 on, a launch may start while the one before it still runs.

Its programs then fetch what no launch writes, and wait before they touch anything else (CUDA programming guide,
"Programmatic Dependent Launch and Synchronization"). All kernels wait: so a launch that goes on knows that all before
it have ended, not only the last one. Elsewhere a launch starts when the one before has ended, and both functions do
nothing. EARLY is what the architecture has: the compiler of kernels gives it to those that have such a parameter.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """The next launch may start as soon as all programs of this one have come here."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr):
    """Until the launch before has ended, and what it has written is there."""
    if EARLY:
        gdc_wait()
