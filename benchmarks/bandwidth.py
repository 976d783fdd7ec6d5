"""The read bandwidth of this machine's memory with all its cores; `python -m benchmarks.bandwidth` prints it."""

from __future__ import annotations

import os

from bringup.compile.bench.bandwidth import Probe

__all__ = ["Probe", "cores"]


def cores() -> int:
    """The logical cores that this process may use."""
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    probe = Probe(cores())
    print(f"{cores()} threads:", *(f"{probe.bytes_per_second() / 1e9:.1f}" for _ in range(5)), "GB/s")
