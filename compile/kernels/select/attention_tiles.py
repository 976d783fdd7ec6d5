"""Tile sizes of the attention kernels, limited by the registers and the shared memory of an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.architectures import is_nvidia
from bringup.compile.kernels.code.types import power_of_two

PROGRAMS = 264  # minimum number of programs of decode if there are enough keys: two for each multiprocessor of an H200
MOST_SPLITS = 32
SPILLING = ("sm_120",)  # need fewer keys or more warps: with the tiles of others a thread spills 8 to 16 bytes
# Warps and stages of prefill for 129 to 256 channels in float32: with 16 rows either Triton 3.6 or 3.9 spills.
FEW_ROWS = {"sm_80": (8, 1), "sm_90": (4, 2), "sm_100": (8, 2)}
LARGE = ("sm_90", "sm_100")  # have shared memory for large tiles, and launches that start early
EARLY, EARLY_WIDE = 256, 128  # maximum channels of keys for which decode fetches a tile early: in 16 bits, in float32
TENSOR_CORE = 16  # minimum rows and channels of a product in 16 bits
LEAST_KEYS = 16  # minimum keys of a product for NVIDIA with Triton 3.6. AMD's shared memory has room for 8 keys of MLA


def supports_e4m3(capability: str) -> bool:
    """Whether Triton supports conversion of float8_e4m3fn on an architecture."""
    return not capability.startswith("sm_8") or capability == "sm_89"


@dataclass(frozen=True)
class Tiles:
    """A tile of `rows` queries or heads by `keys` keys, and the warps and stages of its kernel."""

    rows: int
    keys: int
    warps: int
    stages: int

    def splits(self, programs: int, keys: int) -> int:
        """The number of splits of a sequence's keys. `programs`: number of programs without splits."""
        return max(1, min(-(-PROGRAMS // programs), -(-keys // (self.min_tiles * self.keys)), MOST_SPLITS))

    @property
    def min_tiles(self) -> int:
        """Minimum number of tiles of keys in a split: computing these takes no longer than combining two splits."""
        return 2 if self.keys <= 32 else max(1, 256 // self.keys)


def parts_of(channels: int) -> tuple[int, int]:
    """The largest power of two in `channels`, and one that covers the rest: 64 and 32 for 96, 64 and 0 for 64.

    Each is at least `TENSOR_CORE`, unless the rest is 0.
    """
    first = max(TENSOR_CORE, 1 << (channels.bit_length() - 1))
    rest = channels - first
    return first, 0 if rest <= 0 else max(TENSOR_CORE, power_of_two(rest))


def _in_parts(channels: int) -> bool:
    return parts_of(channels)[1] > 0


def _floor(number: int) -> int:
    """The largest power of two that is at most `number`; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)


def _least_keys(capability: str) -> int:
    return LEAST_KEYS if is_nvidia(capability) else LEAST_KEYS // 2


def fits_early(wide: bool, channels: int, capability: str) -> bool:
    """Whether a decode launch has registers for the tile of keys that it fetches before it waits."""
    return channels <= (EARLY_WIDE if wide else EARLY) and capability not in SPILLING


def has_two_loops(wide: bool, channels: int, capability: str) -> bool:
    """Whether prefill has a loop without masks, too. In the other cases some kernels with two loops spill."""
    return capability in LARGE and not wide and not _in_parts(channels)


def decode_tiles(wide: bool, channels: int, values: int, heads: int, capability: str) -> Tiles:
    """The tile of decode. `channels` of keys, `values`: channels of values, `heads`: query heads of a key head.

    `wide`: products are computed in float32.
    """
    widest = max(sum(parts_of(channels)), power_of_two(values))
    if wide:
        rows = min(4 if widest > 256 else 8, power_of_two(heads))
        small = capability in SPILLING or (capability == "sm_80" and _in_parts(channels))
        keys = max(_least_keys(capability), min(32, _floor((2048 if small else 4096) // widest)))
        few = widest <= (128 if capability in SPILLING else 256)
        return Tiles(rows, keys, 4 if few or not is_nvidia(capability) else 8, 2)
    if capability in LARGE:  # the first tile is fetched before the launch waits, so it is as large as registers permit
        keys = max(16, min(256, _floor(16384 // widest)))
        return Tiles(TENSOR_CORE, keys, 8 if widest <= 256 else 4, 2)
    if capability in SPILLING and 256 < widest <= 576:  # with 16 keys Triton 3.6 spills with 4 warps, 3.9 with 8
        return Tiles(TENSOR_CORE, 32, 8, 2)
    warps = 8 if capability in SPILLING and 64 < widest <= 256 else 4
    return Tiles(TENSOR_CORE, max(16, min(64, _floor(8192 // widest))), warps, 3 if widest <= 64 else 2)


def prefill_tiles(wide: bool, channels: int, values: int, tokens: int, capability: str) -> Tiles:
    """The tile of prefill, for a step of `tokens` tokens. The other parameters are those of `decode_tiles`."""
    widest = max(sum(parts_of(channels)), power_of_two(values))
    rows = max(16, power_of_two(tokens))
    if wide and widest > 256:
        return Tiles(16, _least_keys(capability), 8, 1)
    if wide and widest > 128 and capability in FEW_ROWS:
        return Tiles(8, 16, *FEW_ROWS[capability])
    if wide and widest > 128:
        return Tiles(min(16, rows), 16, 8 if is_nvidia(capability) else 4, 2)
    if wide:
        # Triton 3.6 spills with 4 warps for NVIDIA, but with 8 on sm_86 and sm_89 for more than 64 channels. 3.9 spills
        # with 8 on sm_100, on sm_80 for up to 64 channels, and for channels in two parts.
        narrow = capability == "sm_100" or (capability == "sm_80" and widest <= 64)
        few = narrow or not is_nvidia(capability) or _in_parts(channels)
        few = few or (capability in ("sm_86", "sm_89") and widest > 64)
        keys = 16 if narrow else max(16, min(32, _floor(2048 // widest)))
        return Tiles(min(32, rows), keys, 4 if few else 8, 2)
    if widest <= 128 and capability == "sm_90":
        return Tiles(min(64, rows), 32 if rows == 32 and _in_parts(channels) else 64, 4, 3)
    if widest <= 64:
        return Tiles(min(64, rows), 32 if capability in (*SPILLING, "sm_100") else 64, 4, 2)
    if widest <= 256:  # with 32 keys and 32 rows a thread spills, because ptxas limits it to 128 registers
        return Tiles(min(64, rows), 16 if rows == 32 else 32, 8 if widest > 128 else 4, 2)
    return Tiles(16, 16, 8, 1) if capability in SPILLING else Tiles(16, 16, 4, 2)
