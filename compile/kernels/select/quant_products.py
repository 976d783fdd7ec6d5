"""Selects the kernels for products with packed matrices, which are dequantised when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from bringup.compile.kernels.call import Constant, KernelCall, Operand
from bringup.compile.kernels.code.dequantised import Packed, Places, dequantised, packed_of
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At
from bringup.compile.kernels.code.types import POINTERS, TYPES, kernel, pointer, power_of_two, size_of
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.kernels.select.operands import Factor, Input, factor_of, input_of
from bringup.compile.kernels.select.products import DTYPES, NAMES, Epilogue, epilogue_of, epilogue_text
from bringup.compile.kernels.select.tiles import NARROWEST, PROCESSORS, tile
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph
from bringup.compile.schedule.graph.roles import products

EACH = 32  # elements of weights for each thread of the kernel for one row


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and lanes of a tile, its `parts` of `channels` channels each, and the warps and stages of its kernel."""

    rows: int
    lanes: int
    parts: int
    channels: int
    warps: int
    stages: int = 1


def quant_product(graph: OpGraph, group: Group, capability: str, drawn: str = "") -> tuple[KernelCall, ...] | None:
    """One call of `quant_linear` for one row, or of `quant_linear_tile` for more; None for another group.

    `drawn`: see `HEADS`.
    """
    found = products(group)
    if not 1 <= len(found) <= 2 or any(node.short not in ("quant_linear", "quant_experts") for node in found):
        return None
    try:
        return (_call(graph, group, found, drawn),)
    except NotTaken:
        return None


def _call(graph: OpGraph, group: Group, found: list[Node], drawn: str) -> KernelCall:
    given = input_of(graph, group, found)
    factors = [factor_of(graph, node, packed_of(node).codes) for node in found]
    dtypes = {graph.buffers[given.x.buffer].dtype, *(packed_of(node).dtype for node in found)}
    shapes = {graph.buffers[node.outputs[0]].shape for node in found}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES) or len(shapes) != 1:
        raise NotTaken
    code = Code(graph, group, FORMULAS, {"row": "live", "lane": "live"})
    epilogue = epilogue_of(code, given, factors, drawn=drawn)
    word = _shared_words(epilogue)
    return _launch(code, given, epilogue, word, _tiles(graph, given, epilogue, word))


def _shared_words(epilogue: Epilogue) -> int:
    """The number of lanes that read the same words; 1 unless the columns of a word are adjacent lanes, in order."""
    weights = [packed_of(factor.node) for factor in epilogue.factors]
    if any(weight.values == 1 or weight.axis != len(weight.shape) - 2 for weight in weights):
        return 1
    (values, *others) = {weight.values for weight in weights}
    lanes = np.arange(-(-epilogue.lanes // values) * values)
    for columns in _columns(epilogue.columns, lanes):
        found = np.where(lanes < epilogue.lanes, columns, -1).reshape(-1, values)
        first = found[:, :1]
        aligned = (first % values == 0) & ((found == first + np.arange(values)) | (found < 0))
        if others or not np.where(first < 0, found < 0, aligned).all():
            return 1
    return values


def _columns(text: str, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columns that the code of `COLUMNS` returns for lanes."""
    names: dict[str, Any] = {"tl": SimpleNamespace(where=np.where)}
    exec(text, names)
    return names["columns"](lanes)


def _tiles(graph: OpGraph, given: Input, epilogue: Epilogue, word: int) -> Tiles:
    """The tile of a product. The channels of a part are in one block if blocks are short, so a scale is read once.

    With one row, a load has 16 bytes of codes, and a tile has enough channels for all threads of 4 warps if possible.
    """
    weight, factors = packed_of(epilogue.factors[0].node), len(epilogue.factors)
    channels, block = given.x.shape[-1], weight.block[-1]
    in_blocks = weight.scales.shape[-1] > 1 and block >= NARROWEST and power_of_two(block) == block
    most = block if in_blocks else power_of_two(channels)
    if given.rows > 1:
        dtype = graph.buffers[given.x.buffer].dtype
        size = tile(given.rows, epilogue.lanes, channels, dtype, factors, epilogue.share)
        return Tiles(size.rows, size.lanes, 1, min(size.channels, max(NARROWEST, most)), size.warps, size.stages)
    vector = 16 // size_of(graph.buffers[weight.codes.buffer].dtype)
    wanted = max(32, min(power_of_two(channels), 128 * vector))
    deep = min(wanted, max(NARROWEST, most))
    parts = wanted // deep if in_blocks else 1
    lanes = max(word, 2)
    while lanes * parts * deep * factors < 128 * EACH and epilogue.lanes >= lanes * 4 * PROCESSORS:
        lanes *= 2
    while lanes * parts * deep * factors > 128 * 2 * EACH and parts * deep > 32:
        parts, deep = (parts // 2, deep) if parts > 1 else (1, deep // 2)
    return Tiles(1, lanes, parts, deep, max(1, min(4, lanes * parts * deep * factors // (32 * EACH))))


def _launch(code: Code, given: Input, epilogue: Epilogue, word: int, sizes: Tiles) -> KernelCall:
    graph, (first, *rest) = code.graph, epilogue.factors
    norm, single = given.norm, given.rows == 1
    text = epilogue_text(code)
    weights = [_weight(code, n, factor, word, sizes.channels) for n, factor in enumerate((first, *rest))]
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
        "EPILOGUE": text,
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
        constants |= {"SHARE": given.share, "PARTS": sizes.parts}
        stem, grid = "quant.quant_linear", (across, max(1, given.batch), 1)
    else:
        constants |= {"M": given.rows, "BM": sizes.rows}
        stem, grid = "quant.quant_linear_tile", (across * -(-given.rows // sizes.rows), max(1, given.batch), 1)
    parameters += code.parameters
    found, arguments = kernel(stem, parameters, constants, num_warps=sizes.warps, num_stages=sizes.stages)
    return KernelCall(kernel=found, grid=grid, arguments=arguments, scratch=code.scratch)


def _weight(code: Code, number: int, factor: Factor, word: int, step: int) -> str:
    """The code of a function that returns a tile of a weight, rounded to its dtype. It shares the epilogue's pointers.

    Triton identifies functions by name, so the name has the number of the weight. `c` are columns, `g` the first
    columns in the same words, `k` channels of parts that begin at `start`; `live` and `begun` are the masks of both.
    """
    weight: Packed = packed_of(factor.node)
    code.lines = []
    code.restart({"start": "begun", "k": "live"})
    lead = (At("e"),) if len(weight.shape) == 3 else ()
    column = At("g") if word > 1 else At("c")
    places = Places((*lead, At("c"), At("k")), (*lead, column, At("k")), "start", step)
    value = dequantised(code, weight, places)
    rounded = f"({value}).to({TYPES[weight.dtype]}).to(tl.float32)" if weight.dtype != "float32" else value
    lines = [
        f"def weight{number}(e, c, g, k, start, live, begun, {', '.join(NAMES)}):",
        *code.lines,
        f"return {rounded}",
    ]
    return "\n    ".join(lines) + "\n"
