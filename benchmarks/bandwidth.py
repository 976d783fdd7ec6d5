"""The read bandwidth of this machine's memory with all its cores; `python -m benchmarks.bandwidth` prints it."""

from __future__ import annotations

from bringup.compile.bench.bandwidth import Probe
from bringup.system.processors import processors

if __name__ == "__main__":
    cores = processors()
    probe = Probe(cores)
    print(f"{cores} threads:", *(f"{probe.bytes_per_second() / 1e9:.1f}" for _ in range(5)), "GB/s")
