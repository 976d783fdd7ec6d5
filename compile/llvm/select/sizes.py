"""Dtypes and sizes that kernels and what selects them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOATS = ("float32", "bfloat16", "float16")  # computed as float32, whatever they are stored as
BLOCKS_AT_ONCE = 16  # blocks whose scales a thread makes floats of at a time
AHEAD = 2048  # bytes that products of activations in int8 fetch ahead: 0 to 4096 were measured
FEW_ROWS = 8  # rows of activations, at most, whose sums of products are in registers for one row of a weight
STRIP = 8  # rows of a weight in few bits that rows of activations share as float32
STRIP_ROWS = 16  # of activations, at most, that pass over a strip, or are multiplied as digits of a byte
STRIP_TILE = 4  # of these, whose sums of products are in registers
BYTES_ROWS = 6  # of activations in int8, at most, that pass over codes of a byte
APART = 16  # numbers between rows of a strip
TILE_VECTORS = 3  # vectors of columns in a tile of a product
BLOCK_ROWS = 256  # rows of x, at most, that a product of many rows converts to float32 at a time
QUERY_VECTORS = 2  # vectors of queries that prefill computes together
TOGETHER = 4  # heads of a group, at most, that decode computes together
KEYS = 64  # of a tile of attention, which gets all their scores before their values
SPAN_KEYS = 512  # of a span, where a sequence may have more
SPAN = 2  # numbers of a span and head in addition to the sums of values
MOST_SPANS = 16 << 20  # bytes of all spans: of many sequences and heads they have more keys
HEADS = 128 << 10  # bytes of what decode has of heads that pass over a tile: it stays in the cache
BINS = 256  # values of a digit, by which the highest scores are found


def converts(settings: Mapping[str, Any]) -> bool:
    """Whether a product computes with a copy of x, as float32."""
    return settings["x"] != "float32" or bool(settings.get("activations"))


def scratch_of_decode(channels: int, values: int, together: int, parts: int) -> int:
    """Bytes of scratch memory of `attention_decode`, without chosen keys."""
    heads = together * parts
    return 8 * (KEYS + 2 * parts) + 4 * (heads * (channels + KEYS + values + 2) + heads * (channels + values) % 2)
