"""A lower bound on the time of a launch on a device: its bytes at the device's memory bandwidth.

Bandwidths are the vendors' figures, in 10^9 bytes per second; copies reach 80 to 95 percent of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU by its short name, with the memory bandwidth of its data sheet (`source`)."""

    name: str
    architecture: str
    gigabytes_per_second: float
    source: str

    def microseconds(self, nbytes: int) -> float:
        """The time to read or write `nbytes` at full bandwidth, in microseconds."""
        return nbytes / self.gigabytes_per_second / 1e3


DEVICES = (
    Device(name="a100-40", architecture="sm_80", gigabytes_per_second=1555, source="NVIDIA A100 data sheet, 40 GB SXM"),
    Device(name="a100-80", architecture="sm_80", gigabytes_per_second=2039, source="NVIDIA A100 data sheet, 80 GB SXM"),
    Device(name="a10", architecture="sm_86", gigabytes_per_second=600, source="NVIDIA A10 data sheet"),
    Device(name="a40", architecture="sm_86", gigabytes_per_second=696, source="NVIDIA A40 data sheet"),
    Device(name="l4", architecture="sm_89", gigabytes_per_second=300, source="NVIDIA L4 data sheet"),
    Device(name="l40s", architecture="sm_89", gigabytes_per_second=864, source="NVIDIA L40S data sheet"),
    Device(name="h100", architecture="sm_90", gigabytes_per_second=3350, source="NVIDIA H100 data sheet, SXM"),
    Device(name="h200", architecture="sm_90", gigabytes_per_second=4800, source="NVIDIA H200 data sheet"),
    Device(name="b200", architecture="sm_100", gigabytes_per_second=8000, source="NVIDIA DGX B200 data sheet, a GPU"),
    Device(name="rtx5090", architecture="sm_120", gigabytes_per_second=1792, source="NVIDIA RTX Blackwell whitepaper"),
    Device(name="mi210", architecture="gfx90a", gigabytes_per_second=1638, source="AMD Instinct MI210 data sheet"),
    Device(name="mi300x", architecture="gfx942", gigabytes_per_second=5300, source="AMD Instinct MI300X data sheet"),
)  # fmt: skip


def devices_of(architecture: str) -> tuple[Device, ...]:
    """The GPUs of an architecture, on which kernels compiled for it run."""
    return tuple(device for device in DEVICES if device.architecture == architecture)
