"""Dtypes and sizes that kernels and their selectors share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOATS = ("float32", "bfloat16", "float16")  # computed as float32
BLOCKS_AT_ONCE = 16  # blocks whose scales a thread converts to float32 at a time
AHEAD = 2048  # bytes: prefetch distance of products with int8 activations; 0 to 4096 were measured
FEW_ROWS = 8  # maximum rows of activations of `linear_rows`: one row of a weight, all accumulators in registers
STRIP = 8  # rows of a packed weight that are converted to float32 together, for all rows of activations
STRIP_ROWS = 16  # maximum rows of activations that use a strip, or are multiplied as 8-bit digits
STRIP_TILE = 4  # of these, rows whose accumulators are in registers
BYTES_ROWS = 6  # maximum rows of int8 activations that are multiplied with 8-bit codes
APART = 16  # elements between the rows of a strip
TILE_VECTORS = 3  # vectors of columns in a tile of a product
BLOCK_ROWS = 256  # maximum rows of x that a product of many rows converts to float32 at a time
QUERY_VECTORS = 2  # vectors of queries that prefill computes together
TOGETHER = 4  # maximum heads of a group that decode computes together
KEYS = 64  # of a tile of attention: all scores of a tile are computed before its values are read
SPAN_KEYS = 512  # of a span, if a sequence may have more
SPAN = 2  # elements of a span and head in addition to the sums of values
MOST_SPANS = 16 << 20  # bytes: maximum size of the results of all spans; spans become longer if it is exceeded
HEADS = 128 << 10  # bytes: maximum state of the heads that decode computes per tile, so that it stays in the cache
CONV_CHANNELS = 256  # of a convolution, which are computed together: several cache lines of each token
CONV_SHARE = 64  # a part of a convolution has a multiple of these channels: a cache line or more of each token
STATE_COLUMNS = 64  # of a recurrent state of a head: complete rows for 64 channels of a value; 16 to 128 were measured
BINS = 256  # values of a digit in the radix selection of the highest scores


def converts(settings: Mapping[str, Any]) -> bool:
    """Whether a product computes with a float32 copy of x."""
    return settings["x"] != "float32" or bool(settings.get("activations"))


def scratch_of_decode(channels: int, values: int, together: int, parts: int) -> int:
    """Bytes of scratch memory of `attention_decode`, without the list of selected keys."""
    heads = together * parts
    return 8 * (KEYS + 2 * parts) + 4 * (heads * (channels + KEYS + values + 2) + heads * (channels + values) % 2)
