"""Products with matrices in few bits: as those of floats, but that numbers are made of codes where they are read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from bringup.compile.kernels.call import Constant, KernelCall, Operand
from bringup.compile.kernels.code.dequantised import Packed, Places, dequantised, packed_of
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At
from bringup.compile.kernels.code.types import POINTERS, TYPES, kernel, pointer, power_of_two, size_of
from bringup.compile.kernels.code.writer import POINTER_LIMIT, Code, NotTaken
from bringup.compile.kernels.select.operands import OF_EXPERTS, Factor, Input, input_of
from bringup.compile.kernels.select.products import DTYPES, Epilogue, epilogue_of
from bringup.compile.kernels.select.tiles import NARROWEST, PROCESSORS, Tiles, tile
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View, whole
from bringup.compile.schedule.graph.roles import products

NAMES = [f"p{n}" for n in range(POINTER_LIMIT)]
EACH = 32  # numbers of a thread of the kernel of one row


def quant_product(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One launch of `quant_linear` for one row, of `quant_linear_tile` for more."""
    found = products(group)
    if not 1 <= len(found) <= 2 or any(node.short not in ("quant_linear", "quant_experts") for node in found):
        return None
    try:
        return (_call(graph, group, found),)
    except NotTaken:
        return None


def _call(graph: OpGraph, group: Group, found: list[Node]) -> KernelCall:
    given = input_of(graph, group, found)
    factors = [_factor(graph, node) for node in found]
    dtypes = {graph.buffers[given.x.buffer].dtype, *(packed_of(node).dtype for node in found)}
    shapes = {graph.buffers[node.outputs[0]].shape for node in found}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES) or len(shapes) != 1:
        raise NotTaken
    code = Code(graph, group, FORMULAS, {"row": "live", "lane": "live"})
    epilogue = epilogue_of(code, given, factors)
    word = _shared_words(epilogue)
    return _launch(code, given, epilogue, word, _tiles(graph, given, epilogue, word))


def _factor(graph: OpGraph, node: Node) -> Factor:
    keys = ("bias_eo", "expert_B") if node.short in OF_EXPERTS else ("bias", "")
    bias, expert = (node.argument(key) for key in keys)
    if not isinstance(bias, View | None) or not isinstance(expert, View | None):
        raise NotTaken
    if expert is not None and (len(expert.shape) != 1 or expert != whole(graph.buffers[expert.buffer])):
        raise NotTaken
    return Factor(node, packed_of(node).codes, bias, expert)


def _shared_words(epilogue: Epilogue) -> int:
    """How many lanes read the same words: where columns of a word are lanes side by side, and in order."""
    weights = [packed_of(factor.node) for factor in epilogue.factors]
    if any(weight.values == 1 or weight.axis != len(weight.shape) - 2 for weight in weights):
        return 1
    (values, *others) = {weight.values for weight in weights}
    names = {"tl": SimpleNamespace(where=np.where)}
    exec(epilogue.columns, names)
    lanes = np.arange(-(-epilogue.lanes // values) * values)
    for columns in names["columns"](lanes):  # pyright: ignore[reportCallIssue]
        found = np.where(lanes < epilogue.lanes, columns, -1).reshape(-1, values)
        first = found[:, :1]
        aligned = (first % values == 0) & ((found == first + np.arange(values)) | (found < 0))
        if others or not np.where(first < 0, found < 0, aligned).all():
            return 1
    return values


def _tiles(graph: OpGraph, given: Input, epilogue: Epilogue, word: int) -> Tiles:
    """Columns of a tile are of one block where blocks are short, so that what these have is read once for them."""
    weight, factors = packed_of(epilogue.factors[0].node), len(epilogue.factors)
    channels, block = given.x.shape[-1], weight.block[-1]
    in_blocks = weight.scales.shape[-1] > 1 and block >= NARROWEST and power_of_two(block) == block
    most = block if in_blocks else power_of_two(channels)
    if given.rows > 1:
        dtype = graph.buffers[given.x.buffer].dtype
        sizes = tile(given.rows, epilogue.lanes, channels, dtype, factors, epilogue.head)
        return replace(sizes, channels=min(sizes.channels, max(NARROWEST, most)))
    vector = 16 // size_of(graph.buffers[weight.codes.buffer].dtype)
    deep = max(32, min(power_of_two(channels), 128 * vector, most))
    least = max(word, 2)
    wide = epilogue.head or max(least, 4096 // deep)
    while not epilogue.head and wide > least and epilogue.lanes * max(1, given.batch) < wide * 2 * PROCESSORS:
        wide //= 2
    warps = max(1, min(4, wide * deep // (32 * EACH)))
    while wide * deep * factors > warps * 32 * 2 * EACH and deep > 32:
        deep //= 2
    return Tiles(1, wide, deep, warps)


def _launch(code: Code, given: Input, epilogue: Epilogue, word: int, sizes: Tiles) -> KernelCall:
    graph, (first, *rest) = code.graph, epilogue.factors
    norm, single = given.norm, given.rows == 1
    text = "\n    ".join([f"def epilogue(acc0, acc1, row, lane, live, batch, {', '.join(NAMES)}):", *code.lines])
    weights = [_weight(code, factor, word, sizes.channels) for factor in (first, *rest)]
    constants: dict[str, Constant] = {name: None for name in NAMES[len(code.parameters) :]}
    parameters: list[tuple[str, Operand]] = []
    views = {"x": given.x, "expert": first.expert}
    views |= {"scale": norm.scale if norm else None, "shift": norm.shift if norm else None}
    for name, view in views.items():
        if view is None:
            constants[name] = None
        else:
            buffer = graph.buffers[view.buffer]
            parameters.append((POINTERS[buffer.dtype], pointer(buffer, view.offset)))
    constants |= {
        "COLUMNS": epilogue.columns,
        "WEIGHT0": weights[0],
        "WEIGHT1": weights[-1],
        "EPILOGUE": text + "\n",
        "PAIR": bool(rest),
        "LANES": epilogue.lanes,
        "K": given.x.shape[-1],
        "X_STRIDE": given.stride,
        "NORM": norm.kind if norm else "",
        "EPS": norm.eps if norm else 0.0,
        "OFFSET": norm.offset if norm else 0.0,
        "ROUND_LAST": norm.round_last if norm else False,
        "BN": sizes.lanes,
        "WORD": word,
        "BK": sizes.channels,
    }
    across = -(-epilogue.lanes // sizes.lanes)
    if single:
        constants["SHARE"] = given.share
        stem, grid = "quant_linear", (across, max(1, given.batch), 1)
    else:
        constants |= {"M": given.rows, "BM": sizes.rows}
        stem, grid = "quant_linear_tile", (across, -(-given.rows // sizes.rows), max(1, given.batch))
    parameters += code.parameters
    found, arguments = kernel(stem, parameters, constants, num_warps=sizes.warps, num_stages=sizes.stages)
    return KernelCall(kernel=found, grid=grid, arguments=arguments)


def _weight(code: Code, factor: Factor, word: int, step: int) -> str:
    """The function that gives a tile of a weight, rounded to its dtype; its pointers are among those of the epilogue.

    `c` are columns, `g` the first of those that share words, `k` channels from `start` on, of which `live` ones are.
    """
    weight: Packed = packed_of(factor.node)
    code.lines = []
    code.restart({"k": "live"})
    lead = (At("e"),) if len(weight.shape) == 3 else ()
    column = At("g") if word > 1 else At("c")
    places = Places((*lead, At("c"), At("k")), (*lead, column, At("k")), "start", step)
    value = dequantised(code, weight, places)
    rounded = f"({value}).to({TYPES[weight.dtype]}).to(tl.float32)" if weight.dtype != "float32" else value
    lines = [f"def weight(e, c, g, k, start, live, {', '.join(NAMES)}):", *code.lines, f"return {rounded}"]
    return "\n    ".join(lines) + "\n"
