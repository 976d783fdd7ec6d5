"""The start address of each state space. The spaces do not overlap, so that an address in the wrong space is found."""

from __future__ import annotations

GLOBAL_BASE = 0x7F0000000000
"""The address of the first byte of device memory."""

LOCAL_BASE = 1 << 40
"""The address of the first byte of each thread's local memory."""

SHARED_BASE = 1024
"""The address of the first byte of shared memory. CUDA reserves 1 KiB before a kernel's shared memory."""
