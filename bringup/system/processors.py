"""The processors that this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """Their number: by the affinity of the process, or all where the system has none (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
