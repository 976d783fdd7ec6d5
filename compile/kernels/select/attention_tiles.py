"""Tile sizes of the attention kernels: what fits the registers and the shared memory of an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.architectures import is_nvidia
from bringup.compile.kernels.code.types import power_of_two

PROGRAMS = 264  # that decode is split into at least, where there are keys enough: two for each processor of an H200
MOST_SPLITS = 32
SPILLING = ("sm_120",)  # fewer keys, or more warps: with the tiles of others a thread spills 8 to 16 bytes there
LARGE = ("sm_90", "sm_100")  # with shared memory for large tiles, and launches that start early
TENSOR_CORE = 16  # the least rows, and channels, of a product of 16-bit numbers
LEAST_KEYS = 16  # of a product on NVIDIA's: Triton 3.6 takes no fewer. AMD's have shared memory for 8 of MLA


def supports_e4m3(capability: str) -> bool:
    """Whether Triton converts float8_e4m3fn there."""
    return not capability.startswith("sm_8") or capability == "sm_89"


@dataclass(frozen=True)
class Tiles:
    """`rows` of queries or heads by `keys`."""

    rows: int
    keys: int
    warps: int
    stages: int

    def splits(self, programs: int, keys: int) -> int:
        """Into how many programs a sequence's keys are split, where there are already so many programs."""
        return max(1, min(-(-PROGRAMS // programs), -(-keys // (self.least * self.keys)), MOST_SPLITS))

    @property
    def least(self) -> int:
        """Tiles of keys that a split has, at least: so many take no longer than to combine two splits."""
        return 2 if self.keys <= 32 else max(1, 256 // self.keys)


def parts_of(channels: int) -> tuple[int, int]:
    """Channels as the largest power of two that fits, and one that has the rest: 96 as 64 and 32, 64 as 64 and 0."""
    first = max(TENSOR_CORE, 1 << (channels.bit_length() - 1))
    rest = channels - first
    return first, 0 if rest <= 0 else max(TENSOR_CORE, power_of_two(rest))


def _in_parts(channels: int) -> bool:
    return parts_of(channels)[1] > 0


def _floor(number: int) -> int:
    """The largest power of two that is not larger, 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)


def _least_keys(capability: str) -> int:
    return LEAST_KEYS if is_nvidia(capability) else LEAST_KEYS // 2


def decode_tiles(wide: bool, channels: int, values: int, heads: int, capability: str) -> Tiles:
    """For `heads` query heads of a key head."""
    widest = max(sum(parts_of(channels)), power_of_two(values))
    if wide:
        rows = min(4 if widest > 256 else 8, power_of_two(heads))
        small = capability in SPILLING or (capability == "sm_80" and _in_parts(channels))
        keys = max(_least_keys(capability), min(32, _floor((2048 if small else 4096) // widest)))
        few = widest <= (128 if capability in SPILLING else 256)
        return Tiles(rows, keys, 4 if few or not is_nvidia(capability) else 8, 2)
    if capability in LARGE:  # the first tile is fetched before the launch waits: as many keys as registers hold
        keys = max(16, min(256, _floor(16384 // widest)))
        return Tiles(TENSOR_CORE, keys, 8 if widest <= 256 else 4, 2)
    warps = 8 if capability in SPILLING and 64 < widest <= 256 else 4
    return Tiles(TENSOR_CORE, max(16, min(64, _floor(8192 // widest))), warps, 3 if widest <= 64 else 2)


def prefill_tiles(wide: bool, channels: int, values: int, tokens: int, capability: str) -> Tiles:
    """For a step of so many tokens."""
    widest = max(sum(parts_of(channels)), power_of_two(values))
    rows = max(16, power_of_two(tokens))
    if wide and widest > 256:
        return Tiles(16, _least_keys(capability), 8, 1)
    if wide and widest > 128 and capability == "sm_90":  # with 16 rows one version of Triton or the other spills
        return Tiles(8, 16, 4, 2)
    if wide and widest > 128:
        return Tiles(min(16, rows), 16, 8 if is_nvidia(capability) else 4, 2)
    if wide:  # with 4 warps Triton 3.6 spills for NVIDIA's; with 8, 3.9 spills on sm_100, and for channels in two parts
        few = not is_nvidia(capability) or capability == "sm_100" or _in_parts(channels)
        keys = 16 if capability == "sm_100" else max(16, min(32, _floor(2048 // widest)))
        return Tiles(min(32, rows), keys, 4 if few else 8, 2)
    if widest <= 128 and capability == "sm_90":
        return Tiles(min(64, rows), 32 if rows == 32 and _in_parts(channels) else 64, 4, 3)
    if widest <= 64:
        return Tiles(min(64, rows), 32 if capability in SPILLING else 64, 4, 2)
    if widest <= 256:  # with 32 keys for 32 rows a thread spills, as ptxas gives it 128 registers
        return Tiles(min(64, rows), 16 if rows == 32 else 32, 8 if widest > 128 else 4, 2)
    return Tiles(16, 16, 8 if capability in SPILLING else 4, 2)
