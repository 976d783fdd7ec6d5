"""Selects the kernel for products of float8 rows and float8 matrices, which have scales."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.architectures import has_fp8
from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.dequantised import packed_of
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.types import POINTERS, kernel, pointer, power_of_two, rows_of
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.kernels.select.operands import Input, factor_of, input_of
from bringup.compile.kernels.select.products import DTYPES, NAMES, Epilogue, epilogue_of, epilogue_text
from bringup.compile.kernels.select.tiles import MOST_SUMS, PROCESSORS, Tiles, tile
from bringup.compile.kernels.select.tiles import NARROWEST as LEAST_LANES
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View
from bringup.compile.schedule.graph.roles import products

# Maximum channels that matrix instructions sum: those of Hopper accumulate with 14 bits (arXiv 2412.19437, 3.3.2).
DEEPEST = 128
NARROWEST = 32  # channels of an instruction


def fp8_product(graph: OpGraph, group: Group, capability: str, drawn: str = "") -> tuple[KernelCall, ...] | None:
    """One call of `fp8_linear`, or None for another group. `drawn`: see `HEADS`."""
    found = products(group)
    if not 1 <= len(found) <= 2 or any(node.short not in ("fp8_linear", "fp8_experts") for node in found):
        return None
    try:
        return (_call(graph, group, found, has_fp8(capability), drawn),)
    except NotTaken:
        return None


def _call(graph: OpGraph, group: Group, found: list[Node], native: bool, drawn: str) -> KernelCall:
    given, scales = input_of(graph, group, found), found[0].arguments[1]
    factors = [factor_of(graph, node, packed_of(node).codes) for node in found]
    shapes = {graph.buffers[node.outputs[0]].shape for node in found}
    layouts = {_layout(graph, node) for node in found}
    if len(shapes) != 1 or len(layouts) != 1 or any(node.arguments[1] != scales for node in found):
        raise NotTaken
    if given.norm or given.share != 1 or not isinstance(scales, View):
        raise NotTaken
    code = Code(graph, group, FORMULAS, {"row": "live", "lane": "live"})
    code.native_fp8 = native
    epilogue, layout = epilogue_of(code, given, factors, rounds=True, drawn=drawn), layouts.pop()
    sizes = _tiles(given, epilogue, _step(layout.channels, given.x.shape[-1]), native)
    return _launch(code, given, scales, epilogue, layout, sizes)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of a weight's codes and scales. Strides are in elements; 0 for an axis of scales of size 1.

    `row` and `expert` are strides of codes; `of_expert`, `of_rows` and `of_channels` are strides of scales. A scale is
    for a block of `rows` by `channels`.
    """

    row: int
    expert: int
    of_expert: int
    of_rows: int
    of_channels: int
    rows: int
    channels: int


def _layout(graph: OpGraph, node: Node) -> _Layout:
    weight = packed_of(node)
    codes, scales, experts = weight.codes, weight.scales, len(weight.shape) == 3
    strides = [stride if size > 1 else 0 for size, stride in zip(scales.shape, scales.strides, strict=True)]
    if codes.strides[-1] != 1 or graph.buffers[scales.buffer].dtype not in DTYPES:
        raise NotTaken
    if experts and strides[0] and weight.block[0] != 1:
        raise NotTaken
    return _Layout(
        row=codes.strides[-2],
        expert=codes.strides[0] if experts else 0,
        of_expert=strides[0] if experts else 0,
        of_rows=strides[-2],
        of_channels=strides[-1],
        rows=weight.block[-2],
        channels=min(weight.block[-1], weight.shape[-1]),
    )


def _step(block: int, channels: int) -> int:
    """The channels of a step: at most `DEEPEST`, and all in one block of scales."""
    if block == channels:
        return DEEPEST
    return next(step for step in range(min(block, DEEPEST), 0, -1) if block % step == 0)


def _tiles(given: Input, epilogue: Epilogue, step: int, native: bool) -> Tiles:
    """The tile of a product, based on that of 16-bit products.

    With few rows, weights are most of the bytes, so the tile is narrow enough to give each multiprocessor a program. If
    float8 is converted to float16 in registers (not `native`), a thread has half as many accumulators, and a tile has
    at most 64 rows. Tiles with many accumulators or many elements of x have eight warps, because four would spill. No
    tile has 64 lanes of two matrices and 64 rows or more: with instructions of single warps a thread spills there, and
    with more or fewer lanes it does not.
    """
    channels, factors, deep = given.x.shape[-1], len(epilogue.factors), max(NARROWEST, power_of_two(step))
    size = tile(given.rows, epilogue.lanes, channels, "bfloat16", factors, epilogue.share)
    rows, lanes = size.rows, size.lanes
    while given.rows <= rows == LEAST_LANES < lanes and epilogue.lanes < lanes * PROCESSORS:
        lanes //= 2
    if factors == 2 and lanes == 64 <= rows:
        lanes = 128 if rows > 64 else 32
    lanes = max(lanes, epilogue.unit)
    most, highest = (MOST_SUMS, 128) if native else (MOST_SUMS // 2, 64)
    rows = max(LEAST_LANES, min(rows, most // (lanes * factors), highest))
    rounds = native and given.rows > 1 and epilogue.unit > 1 and factors == 2  # with 4 warps Triton 3.9 spills on sm_90
    warps = 8 if rounds or rows * max(lanes * factors, deep) >= most else 4
    return Tiles(rows, lanes, deep, warps, 3)


def _launch(code: Code, given: Input, scales: View, epilogue: Epilogue, layout: _Layout, sizes: Tiles) -> KernelCall:
    graph, (first, *rest), channels = code.graph, epilogue.factors, given.x.shape[-1]
    of_x, step = rows_of(scales), _step(layout.channels, channels)
    if of_x is None or (scales.shape[-1] > 1 and scales.strides[-1] != 1):
        raise NotTaken
    views: dict[str, View | None] = {"x": given.x, "xs": scales}
    for number, factor in enumerate((first, *rest)):
        views |= {f"w{number}": factor.weight, f"s{number}": packed_of(factor.node).scales}
    views |= {"expert": first.expert} if rest else {"w1": None, "s1": None, "expert": first.expert}
    parameters = [
        (POINTERS[graph.buffers[view.buffer].dtype], pointer(graph.buffers[view.buffer], view.offset))
        for view in views.values()
        if view is not None
    ]
    constants: dict[str, Constant] = {name: None for name in NAMES[len(code.parameters) :]}
    constants |= {name: None for name, view in views.items() if view is None}
    constants |= {
        "COLUMNS": epilogue.columns,
        "EPILOGUE": epilogue_text(code),
        "PAIR": bool(rest),
        "M": given.rows,
        "LANES": epilogue.lanes,
        "K": channels,
        "X_STRIDE": given.stride,
        "XS_STRIDE": of_x[1],
        "W_STRIDE": layout.row,
        "E_STRIDE": layout.expert,
        "S_EXPERT": layout.of_expert,
        "S_ROWS": layout.rows,
        "S_STRIDE": layout.of_rows,
        "S_BLOCK": layout.of_channels,
        "BLOCK": layout.channels,
        "STEP": step,
        "BM": sizes.rows,
        "BN": sizes.lanes,
        "BK": sizes.channels,
        "NATIVE": code.native_fp8,
    }
    tiles = -(-epilogue.lanes // sizes.lanes) * -(-given.rows // sizes.rows)
    parameters += code.parameters
    own, arguments = kernel("quant.fp8_linear", parameters, constants, num_warps=sizes.warps, num_stages=sizes.stages)
    return KernelCall(kernel=own, grid=(tiles, max(1, given.batch), 1), arguments=arguments, scratch=code.scratch)
