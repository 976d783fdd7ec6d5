"""Groups of a single operation with a packed weight: products, embeddings, and dequantisation of a parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from bringup.compile.kernels.call import Operand
from bringup.compile.kernels.code.dequantised import Packed, packed_of
from bringup.compile.kernels.code.types import rows_of
from bringup.compile.kernels.select.tensors import argument_of, result_of
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.call import Call, call
from bringup.compile.llvm.select.products import tiles_of
from bringup.compile.llvm.select.sizes import (
    APART,
    BLOCKS_AT_ONCE,
    BYTES_ROWS,
    FLOATS,
    STRIP,
    STRIP_ROWS,
    STRIP_TILE,
    converts,
)
from bringup.compile.llvm.select.stored import Stored, stored_of
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View
from bringup.graphs.ops.quant_linear import COLUMNS

COUNTS = ("int64", "int32")


def quant(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """One call, or none if there are no rows. None if the operation or the format of the weight is not supported."""
    if len(group.nodes) != 1 or group.nodes[0].short not in _SELECTORS:
        return None
    node = group.nodes[0]
    weight = packed_of(node)
    found = stored_of(graph, weight)
    return None if found is None else _SELECTORS[node.short](graph, node, machine, weight, *found)


Calls = tuple[Call, ...] | None
Slots = list[Operand]


def _linear(graph: OpGraph, node: Node, machine: Machine, weight: Packed, stored: Stored, slots: Slots) -> Calls:
    view = node.argument("x")
    assert isinstance(view, View)
    rows = rows_of(view)
    if rows is None:
        return None
    count, stride = rows
    return _product(graph, node, machine, weight, stored, slots, (1, count), (0, stride), "bias", None)


def _experts(graph: OpGraph, node: Node, machine: Machine, weight: Packed, stored: Stored, slots: Slots) -> Calls:
    x, expert = argument_of(graph, node, "x_BRi"), argument_of(graph, node, "expert_B")
    assert x is not None
    assert expert is not None
    if not expert.is_dense or expert.dtype not in COUNTS:
        return None
    return _product(graph, node, machine, weight, stored, slots, x.shape[:2], x.strides[:2], "bias_eo", "expert_B")


def _product(
    graph: OpGraph, node: Node, machine: Machine, weight: Packed, stored: Stored, slots: Slots, counts: tuple[int, ...],
    strides: tuple[int, ...], bias_name: str, expert_name: str | None,
) -> Calls:  # fmt: skip
    x = argument_of(graph, node, "x" if expert_name is None else "x_BRi")
    bias, out = argument_of(graph, node, bias_name), result_of(graph, node)
    expert = argument_of(graph, node, expert_name) if expert_name else None
    assert x is not None
    dtypes = {each.dtype for each in (x, bias, out) if each is not None}
    if not dtypes <= set(FLOATS) or x.strides[-1] != 1 or not (bias is None or bias.is_dense):
        return None
    if prod(counts) == 0:
        return ()
    columns, channels = weight.shape[-2:]
    settings = {
        **{"x": x.dtype, "bias": bias.dtype if bias else "", "out": out.dtype},
        **{"experts": expert.dtype if expert else "", "weight": stored, "activations": weight.activations},
    }
    given: Slots = [
        *(x.place, *strides, bias.place if bias else 0, columns),
        *(expert.place if expert else 0, out.place, *counts, columns, channels),
    ]
    given += slots
    rounded, few = bool(weight.activations), counts[1] <= STRIP_ROWS
    vectors, together = _vectors(stored, channels, machine), _together(stored, channels, machine, rounded=rounded)
    if together and (few if rounded else counts[1] == 1):
        digits = 1 if rounded else 3
        scratch = 4 * (64 + counts[1] * (channels * digits + 2 * channels // (8 * together)))
        own = {"vectors": together, "digits": digits, "at_once": 16 if machine.adds_bytes and together > 1 else 8}
        return (call("quant_digits", settings | own, given, scratch),)
    if (words := _words(stored, channels, machine, rounded=rounded)) and (few if rounded else counts[1] == 1):
        digits = 1 if rounded else 3
        scratch = counts[1] * (channels * digits + channels)
        return (call("quant_along", settings | {"words": words, "digits": digits}, given, scratch),)
    if rounded and counts[1] <= BYTES_ROWS and (unit := _unit(stored, channels)):
        row = channels // 2 + channels // unit + channels // (stored.block[2] or channels)
        return (call("quant_bytes", settings | {"unit": unit}, given, 4 * (BLOCKS_AT_ONCE + counts[1] * row)),)
    if counts[1] == 1 and vectors:
        lanes, rows = machine.lanes, stored.in_words
        blocks = channels // (stored.block[2] or channels)
        scratch = 4 * (channels + blocks + rows * (BLOCKS_AT_ONCE + lanes))
        return (call("quant_row", settings | {"vectors": vectors}, given, scratch),)
    if few:
        wide = counts[1] if converts(settings) else 0
        scratch = 4 * (STRIP * (channels + APART + 2 * BLOCKS_AT_ONCE) + wide * channels)
        tile = min(counts[1], STRIP_TILE)
        return (call("quant_rows", settings | {"tile": tile, "rest": counts[1] % tile}, given, scratch),)
    tile, panels, scratch = tiles_of(machine, counts[1], channels, converts=converts(settings))
    return (call("quant_tiles", settings | {"tile": tile}, [*given, panels], scratch),)


def _vectors(stored: Stored, channels: int, machine: Machine) -> int:
    """The number of vectors of a block that `quant_row` adds per iteration; 0 if it does not support the weight."""
    block = stored.block[2] or channels
    words = stored.values == 1 or (stored.in_words == 8 and not (stored.signed and stored.bits != 4))
    if stored.indexed >= 0 or not words or channels % block:
        return 0
    return next((count for count in (4, 2, 1) if block % (count * machine.lanes) == 0), 0)


def _unit(stored: Stored, channels: int) -> int:
    """The columns with one scale of x and one of the weight in `quant_bytes`; 0 if it does not support the weight."""
    block = stored.block[2] or channels
    is_whole = stored.values == 1 and stored.bits == 8 and stored.dtype("codes") in ("int8", "uint8")
    if stored.indexed >= 0 or not is_whole or stored.has("table") or stored.code_dtype not in ("int8", "uint8"):
        return 0
    if channels % block or channels % COLUMNS:
        return 0
    return COLUMNS if block % COLUMNS == 0 else 16 if block == 16 else 0


def _together(stored: Stored, channels: int, machine: Machine, *, rounded: bool) -> int:
    """The number of 8-column vectors with one factor in `quant_digits`; 0 if it does not support the weight.

    16-bit accumulators hold 8 vectors of codes without overflow, or 4 of float4, which become 2 · value + 12.
    """
    block = stored.block[2] or channels
    if stored.in_words != 8 or not _are_integers(stored, machine) or channels % block:
        return 0
    is_float4 = stored.code_dtype == "float4_e2m1fn"
    if rounded:
        return 4 if block % COLUMNS == 0 else 0
    return next((count for count in (4 if is_float4 else 8, 4, 2, 1) if block % (8 * count) == 0), 0)


def _words(stored: Stored, channels: int, machine: Machine, *, rounded: bool) -> int:
    """The number of words in a vector of `quant_along`; 0 if it does not support the weight."""
    block = stored.block[2] or channels
    is_along = stored.values > 1 and stored.axis == 2
    if not is_along or not _are_integers(stored, machine) or channels % block or block % 8:
        return 0
    if rounded and channels % COLUMNS:
        return 0
    sizes = (16, 8, 4) if machine.adds_bytes else (8, 4)
    return next((n for n in sizes if channels % (8 * n) == 0 and (block % (8 * n) == 0 or 8 * n % block == 0)), 0)


def _are_integers(stored: Stored, machine: Machine) -> bool:
    """Whether products with 4-bit codes are computed in integers: codes are integers or float4."""
    has_values = not stored.has("table") or stored.code_dtype == "float4_e2m1fn"
    return "avx2" in machine.features and stored.bits == 4 and stored.indexed < 0 and has_values


def _embedding(graph: OpGraph, node: Node, machine: Machine, weight: Packed, stored: Stored, slots: Slots) -> Calls:
    chosen, out = argument_of(graph, node, "rows_N"), result_of(graph, node)
    assert chosen is not None
    if chosen.dtype not in COUNTS or out.dtype not in FLOATS or len(weight.shape) != 2:
        return None
    settings = {"chosen": chosen.dtype, "out": out.dtype, "weight": stored}
    (count,), (stride,) = chosen.shape, chosen.strides
    return (call("quant_lookup", settings, [chosen.place, stride, out.place, count, weight.shape[-1], *slots]),)


def _dequantise(graph: OpGraph, node: Node, machine: Machine, weight: Packed, stored: Stored, slots: Slots) -> Calls:
    out = result_of(graph, node)
    if out.dtype not in FLOATS:
        return None
    rows, columns = weight.shape[-2:]
    settings = {"chosen": "", "out": out.dtype, "weight": stored}
    return (call("quant_lookup", settings, [rows, 0, out.place, prod(weight.shape[:-1]), columns, *slots]),)


_SELECTORS: Mapping[str, Callable[[OpGraph, Node, Machine, Packed, Stored, Slots], Calls]] = {
    "quant_linear": _linear,
    "quant_experts": _experts,
    "quant_embedding": _embedding,
    "dequantise": _dequantise,
}
