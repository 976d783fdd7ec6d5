"""Selects the kernels for matrix products, with the norm before them and an epilogue: elements, heads, caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bringup.compile.kernels.call import Constant, KernelCall, Operand
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At, Index
from bringup.compile.kernels.code.types import ALIGNMENT, POINTERS, kernel, pointer, size_of
from bringup.compile.kernels.code.writer import POINTER_LIMIT, Code, NotTaken, Value
from bringup.compile.kernels.select.heads import has_heads, write_heads
from bringup.compile.kernels.select.operands import Factor, Input, input_of, weight_of
from bringup.compile.kernels.select.outputs import is_rounding, write_elements, write_rounded
from bringup.compile.kernels.select.tiles import PANELS, SPECIALISED, TALLEST, Tiles, gemv, panel, ring, tile
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View
from bringup.compile.schedule.graph.roles import products

DTYPES = ("float32", "bfloat16", "float16")
NAMES = [f"p{n}" for n in range(POINTER_LIMIT)]  # parameters for the buffers of the epilogue


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The code after a product, for up to two accumulators.

    `columns` is the code of `COLUMNS`, `factors` the weight of each accumulator, `lanes` the number of lanes. `share`:
    see `tiles.tile`. `unit`: the number of adjacent lanes that share a scale; they are in one tile. `steps`: for each
    accumulator, (columns from lane to lane, column of lane 0); empty if columns are not equally far apart.
    """

    columns: str
    factors: tuple[Factor, ...]
    lanes: int
    share: int = 1
    unit: int = 1
    steps: tuple[tuple[int, int], ...] = ()


def product(graph: OpGraph, group: Group, capability: str, drawn: str = "") -> tuple[KernelCall, ...] | None:
    """One call of `linear` for one row, of `linear_tile` or a kernel with TMA for more; None for another group.

    `drawn`: see `HEADS`.
    """
    found = products(group)
    if not 1 <= len(found) <= 2 or any(node.short not in ("linear", "expert_linear") for node in found):
        return None
    try:
        return (_call(graph, group, found, capability, drawn),)
    except NotTaken:
        return None


def _call(graph: OpGraph, group: Group, found: list[Node], capability: str, drawn: str) -> KernelCall:
    given = input_of(graph, group, found)
    factors = [weight_of(graph, node) for node in found]
    dtypes = {graph.buffers[view.buffer].dtype for view in (given.x, *(factor.weight for factor in factors))}
    shape = graph.buffers[found[0].outputs[0]].shape
    if len(dtypes) != 1 or not dtypes <= set(DTYPES) or any(graph.buffers[n.outputs[0]].shape != shape for n in found):
        raise NotTaken
    if capability in PANELS and given.rows > TALLEST and dtypes != {"float32"} and not drawn:
        code = Code(graph, group, FORMULAS, {"lane": "present"})
        epilogue = epilogue_of(code, given, factors)
        if (weights := _rows_of_weights(graph, given, epilogue)) is not None:
            return _in_panels(code, given, epilogue, weights, capability)
    code = Code(graph, group, FORMULAS, {"row": "live", "lane": "live"})
    return _launch(graph, code, given, epilogue_of(code, given, factors, drawn=drawn))


def epilogue_of(
    code: Code, given: Input, factors: Sequence[Factor], *, rounds: bool = False, drawn: str = ""
) -> Epilogue:
    """Writes code for all nodes after the products. Raises NotTaken for nodes that an epilogue does not support.

    `rounds`: whether the kernel supports rounding to float8. `drawn`: see `write_elements`; NotTaken if the group does
    not store it. Rope needs so many registers that a thread has half of the accumulators. If there are more rows than
    a tile has, the product is compute-bound, and a launch for rope after it takes less time than the smaller tiles.
    """
    group, shape = code.group, code.graph.buffers[factors[0].node.outputs[0]].shape
    lead = _lead(code, given, shape)
    accumulators: list[tuple[int, int, int]] = []
    for number, factor in enumerate(factors):
        code.bases[factor.node.outputs[0]] = _accumulated(code, factor, number, lead, accumulators)
    if has_heads(group):
        if len(factors) != 1 or given.batch or given.rows > TALLEST or drawn:
            raise NotTaken
        done = write_heads(code, factors[0].node, lead)
        return Epilogue(done.columns, (factors[0], factors[0]), done.lanes, done.share)
    unit = max((write_rounded(code, node, lead, shape) for node in group.nodes if is_rounding(node, rounds)), default=1)
    lanes = write_elements(code, group, lead, shape, drawn)
    if not accumulators or (drawn and not code.scratch):
        raise NotTaken
    places = ", ".join(At("lane", scale, offset).text for _, scale, offset in [*accumulators, accumulators[0]][:2])
    columns = f"def columns(lane):\n    return {places}\n"
    steps = tuple((scale, offset) for _, scale, offset in accumulators)
    return Epilogue(columns, tuple(factors[number] for number, _, _ in accumulators), lanes, unit=unit, steps=steps)


def _lead(code: Code, given: Input, shape: tuple[int, ...]) -> Index:
    """The index of a tile's rows in the result: all axes but the last."""
    if given.batch:
        block = At("batch") if given.batch > 1 else At()
        return block, At("row") if given.rows > 1 else At()
    return code.unflat(At("row"), shape[:-1]) if given.rows > 1 else tuple(At() for _ in shape[:-1])


def _accumulated(
    code: Code, factor: Factor, number: int, lead: Index, accumulators: list[tuple[int, int, int]]
) -> Callable[[Index], Value | None]:
    """The element of a product at an index: one accumulator for each set of columns that the lanes stand for."""

    def value(index: Index) -> Value | None:
        at, name = index[-1], factor.node.outputs[0]
        if index[:-1] != lead or at.symbol != "lane":
            return None
        key = (number, at.scale, at.offset)
        if key not in accumulators:
            accumulators.append(key)
        if len(accumulators) > 2:
            return None
        return biased(code, factor, f"acc{accumulators.index(key)}", index, name)

    return value


def biased(code: Code, factor: Factor, text: str, index: Index, name: str) -> Value:
    """An accumulator plus the bias of its columns, rounded to the product's dtype."""
    if factor.bias is not None:
        place = index[-1:]
        if factor.expert is not None:
            place = (At(code.at(factor.expert, (At("batch"),)).text), *place)
        text = f"{text} + {code.cast(code.at(factor.bias, place), 'float')}"
    return code.given(text, code.graph.buffers[name], index)


def epilogue_text(code: Code, *before: str) -> str:
    """The code of the epilogue, a function, with lines `before` those of `code`.

    Its parameter `first` is the first lane of a program's tile.
    """
    head = f"def epilogue(acc0, acc1, row, lane, live, batch, first, {', '.join(NAMES)}):"
    return "\n    ".join([head, *before, *code.lines]) + "\n"


def _launch(graph: OpGraph, code: Code, given: Input, epilogue: Epilogue) -> KernelCall:
    first, dtype = epilogue.factors[0], graph.buffers[given.x.buffer].dtype
    pair = len(epilogue.factors) == 2
    channels = given.x.shape[-1]
    sizes = _tiles(given, epilogue, channels, dtype)
    norm = given.norm
    operands = {
        "x": given.x,
        "w0": first.weight,
        "w1": epilogue.factors[1].weight if pair else None,
        "expert": first.expert,
        "scale": norm.scale if norm else None,
        "shift": norm.shift if norm else None,
    }
    parameters, constants = _parameters(code, operands)
    constants |= {
        "COLUMNS": epilogue.columns,
        "EPILOGUE": epilogue_text(code),
        "PAIR": pair,
        "LANES": epilogue.lanes,
        "K": channels,
        "X_STRIDE": given.stride,
        "W_STRIDE": first.weight.strides[-2],
        "E_STRIDE": first.weight.strides[0] if first.expert is not None else 0,
        "NORM": norm.kind if norm else "",
        "EPS": norm.eps if norm else 0.0,
        "OFFSET": norm.offset if norm else 0.0,
        "ROUND_LAST": norm.round_last if norm else False,
        "BN": sizes.lanes,
        "BK": sizes.channels,
    }
    across = -(-epilogue.lanes // sizes.lanes)
    if given.rows == 1:
        vector, tiles = 16 // size_of(dtype), -(-channels // sizes.channels)
        together = tiles <= sizes.together
        alone = together and sizes.warps > 1 and sizes.channels == 32 * vector  # each warp has separate rows of weights
        constants |= {"TILES": tiles if together else 1, "ROWS": sizes.lanes if alone else 1}
        constants |= {"EACH": 1 if alone else vector}
        constants |= {"SHARE": given.share, "KNOWN": _known(graph, given, epilogue)}
        stem, grid = "linear", (across, max(1, given.batch), 1)
    else:
        constants |= {"M": given.rows, "BM": sizes.rows}
        stem, grid = "linear_tile", (across * -(-given.rows // sizes.rows), max(1, given.batch), 1)
    specialised, arguments = kernel(stem, parameters, constants, num_warps=sizes.warps, num_stages=sizes.stages)
    return KernelCall(kernel=specialised, grid=grid, arguments=arguments, scratch=code.scratch)


def _parameters(
    code: Code, operands: Mapping[str, View | None]
) -> tuple[list[tuple[str, Operand]], dict[str, Constant]]:
    """The types and arguments of the operands and of the epilogue, and None for each parameter without a buffer."""
    parameters: list[tuple[str, Operand]] = []
    constants: dict[str, Constant] = {name: None for name in NAMES[len(code.parameters) :]}
    for name, view in operands.items():
        if view is None:
            constants[name] = None
        else:
            buffer = code.graph.buffers[view.buffer]
            parameters.append((POINTERS[buffer.dtype], pointer(buffer, view.offset)))
    return parameters + code.parameters, constants


def _rows_of_weights(graph: OpGraph, given: Input, epilogue: Epilogue) -> list[View] | None:
    """The rows of the weight of each accumulator [lanes, channels], if the copy engine can read them and x.

    It reads memory whose addresses and strides are divisible by 16 bytes (PTX ISA, `cp.async.bulk.tensor`), and
    computes nothing. So a norm before such a product is a launch of its own: raises NotTaken.
    """
    channels, size = given.x.shape[-1], size_of(graph.buffers[given.x.buffer].dtype)
    if given.batch or not epilogue.steps:
        return None
    views: list[View] = []
    for factor, (step, column) in zip(epilogue.factors, epilogue.steps, strict=True):
        name, stride, begin = factor.weight.buffer, factor.weight.strides[-2], factor.weight.offset
        views.append(View(name, (epilogue.lanes, channels), (step * stride, 1), begin + column * stride))
    strides = {view.strides[0] for view in views}
    numbers = [*strides, *(view.offset for view in views)]
    numbers += [channels] if given.norm else [given.stride, given.x.offset]  # the launch of a norm stores dense rows
    if len(strides) > 1 or min(numbers[0], given.stride) < channels or any(n * size % ALIGNMENT for n in numbers):
        return None
    if given.norm:
        raise NotTaken
    return views


def _in_panels(code: Code, given: Input, epilogue: Epilogue, weights: Sequence[View], capability: str) -> KernelCall:
    """One call of `linear_specialised` or `linear_panels`, with a program for each multiprocessor, or for each tile.

    `code` has the masks of these kernels: rows past the last one repeat it, so only lanes are masked, by `present`.
    """
    processors = PANELS[capability]
    sizes = panel(given.rows, epilogue.lanes, len(weights), processors)
    operands = {"x": given.x, "w0": weights[0], "w1": weights[1] if len(weights) == 2 else None}
    parameters, constants = _parameters(code, operands)
    constants |= {
        "EPILOGUE": epilogue_text(code, f"present = lane < {epilogue.lanes}"),
        "PAIR": len(weights) == 2,
        "M": given.rows,
        "LANES": epilogue.lanes,
        "K": given.x.shape[-1],
        "X_STRIDE": given.stride,
        "W_STRIDE": weights[0].strides[0],
        "BM": sizes.rows,
        "BN": sizes.lanes,
        "BK": sizes.channels,
    }
    stem = "hopper.linear_specialised" if capability in SPECIALISED else "linear_panels"
    if capability in SPECIALISED:
        constants["STAGES"] = ring(sizes, len(weights))
    programs = min(processors, -(-given.rows // sizes.rows) * -(-epilogue.lanes // sizes.lanes))
    specialised, arguments = kernel(stem, parameters, constants, num_warps=sizes.warps, num_stages=sizes.stages)
    return KernelCall(kernel=specialised, grid=(programs, 1, 1), arguments=arguments)


def _known(graph: OpGraph, given: Input, epilogue: Epilogue) -> bool:
    """Whether the weights and the norm are constant, and no expert is selected."""
    views = [factor.weight for factor in epilogue.factors]
    if given.norm:
        views += [view for view in (given.norm.scale, given.norm.shift) if view is not None]
    constant = all(graph.buffers[view.buffer].kind == "weight" for view in views)
    return constant and all(factor.expert is None for factor in epilogue.factors)


def _tiles(given: Input, epilogue: Epilogue, channels: int, dtype: str) -> Tiles:
    accumulators = len(epilogue.factors)
    if given.rows == 1:
        lanes = epilogue.lanes * max(1, given.batch)
        return gemv(lanes, channels, dtype, accumulators, given.norm is not None)
    return tile(given.rows, epilogue.lanes, channels, dtype, accumulators, epilogue.share)
