"""Selects `elements`, whose code is generated from the nodes of a group.

For element-wise operations, copies and look-ups, a program computes a block of a result. For norms, softmax, routing
and rounding, which need complete rows, a program computes some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bringup.compile.kernels.architectures import has_fp8
from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At, Index, count
from bringup.compile.kernels.code.row_formulas import ROW_FORMULAS
from bringup.compile.kernels.code.types import TYPES, kernel, power_of_two
from bringup.compile.kernels.code.writer import POINTER_LIMIT, Code, NotTaken
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View

BLOCK, WARPS = 512, 4  # elements and warps of a program
MANY, LARGER = 4096, 2048  # programs; above so many, elements of a program: a launch starts about one in a nanosecond
WIDEST = 16384  # maximum columns of a row, which is a tile in registers
WIDEST_ALONE = 65536  # the same for rounding without a norm, for which a program has up to 32 warps
TILE = 1024  # elements of a program if rows are short
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float16": 65504.0}


@dataclass(frozen=True, slots=True)
class Sink:
    """A store of a group. `write` adds the lines that store the element at an index of `shape`.

    `name`: the buffer of the result, "" for rows of a cache.
    """

    name: str
    shape: tuple[int, ...]
    write: Callable[[Code, Index, str], None]


def sinks(graph: OpGraph, group: Group) -> Iterator[Sink]:
    """The results of a group that later groups read, and the rows that it writes to caches.

    Raises NotTaken for any other update of a state.
    """
    for node in group.nodes:
        for name in node.outputs:
            if name in graph.planned:
                yield _result(graph, name)
        if node.short == "write_cache":
            cache, slots, rows = (node.argument(key) for key in ("cache_SGK", "slots_N", "rows_NGK"))
            if not (isinstance(cache, View) and isinstance(slots, View) and isinstance(rows, View)):
                raise NotTaken
            yield _cache_rows(cache, slots, rows)
        elif node.updates:
            raise NotTaken


def _result(graph: OpGraph, name: str) -> Sink:
    buffer = graph.buffers[name]
    return Sink(
        name, buffer.shape, lambda code, index, mask: code.store(buffer, index, code.element(name, index), mask)
    )


def _cache_rows(cache: View, slots: View, rows: View) -> Sink:
    def write(code: Code, index: Index, mask: str) -> None:
        buffer = code.graph.buffers[cache.buffer]
        row = code.at(slots, index[:1])
        store_row(code, cache, (At(row.text), *index[1:]), code.cast(code.at(rows, index), "float"), mask)
        assert buffer.kind == "state"

    return Sink("", rows.shape, write)


def store_row(code: Code, cache: View, place: Index, value: str, mask: str) -> None:
    """Adds the line that stores a value to a cache, in its dtype. Values out of range are clamped."""
    buffer = code.graph.buffers[cache.buffer]
    if buffer.dtype in LARGEST:
        value = f"minimum(maximum({value}, {-LARGEST[buffer.dtype]}), {LARGEST[buffer.dtype]})"
    where = code.address(buffer, cache.strides, place, cache.offset)
    code.lines.append(f"tl.store({where}, ({value}).to({TYPES[buffer.dtype]}), mask={mask})")


def elements(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call of `elements`, or None. Each result has a range of programs; the program id selects its code."""
    code = Code(graph, group, FORMULAS, {})
    body: list[str] = []
    begin = 0
    try:
        found = list(sinks(graph, group))
        block = LARGER if sum(count(sink.shape) for sink in found) > MANY * BLOCK else BLOCK
        for number, sink in enumerate(found):
            lines = _section(code, sink, begin, block)
            begin += -(-count(sink.shape) // block)
            body += _branch(lines, begin, number, len(found))
    except NotTaken:
        return None
    if not found:
        return None
    return (call_of(code, body, begin, WARPS),)


def _section(code: Code, sink: Sink, begin: int, block: int) -> list[str]:
    size = count(sink.shape)
    wide = ".to(tl.int64)" if size >= 2**31 - block else ""
    first = len(code.lines)
    code.lines.append(f"i = (pid - {begin}){wide} * {block} + tl.arange(0, {block})")
    code.lines.append(f"live = i < {size}")
    code.restart({"i": "live"})
    sink.write(code, code.unflat(At("i"), sink.shape), "live")
    return code.lines[first:]


def _branch(lines: list[str], end: int, number: int, branches: int) -> list[str]:
    """The lines of programs up to `end`, as one of so many branches; without a condition if there is only one."""
    if branches == 1:
        return lines
    condition = f"{'if' if number == 0 else 'elif'} pid < {end}:" if number < branches - 1 else "else:"
    return [condition, *(f"    {line}" for line in lines)]


def rows(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call of `elements` in which each program computes some complete rows, or None.

    All axes but the last are merged. Nodes with different numbers of rows, such as norms of the heads of queries and of
    keys, have separate programs: the program id selects their code.
    """
    if not any(node.short in ROW_FORMULAS for node in group.nodes):
        return None
    try:
        return (_row_call(graph, group, has_fp8(capability)),)
    except (NotTaken, KeyError):
        return None


def _row_call(graph: OpGraph, group: Group, native_fp8: bool) -> KernelCall:
    short = {name for node in group.nodes if _drops_axis(node) for name in node.outputs}
    sections = _row_sections(graph, group, short)
    shapes = [shape for node in group.nodes for shape in _shapes(graph, node, short)]
    widths = sorted({shape[-1] for shape in shapes})
    widest = power_of_two(widths[-1])
    rounded = {node.short for node in group.nodes} & set(ROW_FORMULAS) == {"to_fp8"}
    if widest > (WIDEST_ALONE if rounded else WIDEST):
        raise NotTaken
    code = Code(graph, group, FORMULAS, {})
    code.native_fp8 = native_fp8
    body: list[str] = []
    begin = 0
    for number, (total, found) in enumerate(sections.items()):
        lines = _row_section(code, found, short, number, begin, total, widths)
        begin += -(-total // _each(total, widest))
        body += _branch(lines, begin, number, len(sections))
    warps = max(1, min(8, _each(max(sections), widest) * widest // 256), widest // 2048 if rounded else 1)
    return call_of(code, body, begin, warps)


def _each(rows: int, widest: int) -> int:
    """The rows of a program, of so many, whose tiles have up to `widest` columns."""
    return max(1, min(power_of_two(rows), TILE // widest))


def _row_section(
    code: Code, found: list[Sink], short: set[str], number: int, begin: int, rows: int, widths: list[int]
) -> list[str]:
    """The lines for the programs from `begin` on, which compute `rows` rows of the results `found`.

    Sections have different variables, because their tiles can have different shapes.
    """
    each, first, row = _each(rows, power_of_two(widths[-1])), len(code.lines), f"row{number}"
    lanes = {width: f"c{width}_{number}" for width in widths}
    code.lanes = lanes
    code.lines.append(f"{row} = (pid - {begin}) * {each} + tl.arange(0, {each})[:, None]")
    code.lines.append(f"live_{row} = {row} < {rows}")
    for width, lane in lanes.items():
        code.lines.append(f"{lane} = tl.arange(0, {power_of_two(width)})[None, :]")
        code.lines.append(f"live_{lane} = live_{row} & ({lane} < {width})")
    code.restart({each: f"live_{each}" for each in (row, *lanes.values())})
    for sink in found:
        lead = code.unflat(At(row), sink.shape if sink.name in short else sink.shape[:-1])
        if sink.name in short:
            sink.write(code, lead, f"live_{row}")
        else:
            lane = lanes[sink.shape[-1]]
            sink.write(code, (*lead, At(lane)), f"live_{lane}")
    return code.lines[first:]


def _row_sections(graph: OpGraph, group: Group, short: set[str]) -> dict[int, list[Sink]]:
    """The stores of a group by their number of rows. Raises NotTaken if a node reads results with another number."""
    counts: dict[str, int] = {}
    for node in group.nodes:
        found = {count(shape[:-1]) for shape in _shapes(graph, node, short)}
        found |= {counts[view.buffer] for view in node.views if view.buffer in counts}
        if len(found) > 1:
            raise NotTaken
        counts |= dict.fromkeys(node.outputs, *found)
    sections: dict[int, list[Sink]] = {}
    for sink in sinks(graph, group):
        total = counts[sink.name] if sink.name else count(sink.shape[:-1])
        sections.setdefault(total, []).append(sink)
    return sections


def _shapes(graph: OpGraph, node: Node, short: set[str]) -> list[tuple[int, ...]]:
    """The shapes of a node whose last axes are complete rows. Raises NotTaken for a scalar."""
    found = [graph.buffers[name].shape for name in node.outputs if name not in short]
    found += [view.shape for view in node.views[:1] if node.short in ROW_FORMULAS]
    if () in found:
        raise NotTaken
    return found


def _drops_axis(node: Node) -> bool:
    """Whether a node reduces each row to one value and removes the axis."""
    return node.short in ("sum", "mean", "amax") and not node.argument("keepdim")


def call_of(code: Code, body: list[str], programs: int, warps: int) -> KernelCall:
    """A call of `elements` with the lines `body` as its device function."""
    names = [f"p{n}" for n in range(POINTER_LIMIT)]
    text = "\n    ".join([f"def body(pid, {', '.join(names)}):", *body]) + "\n"
    unused = {name: None for name in names[len(code.parameters) :]}
    specialised, arguments = kernel("elements", code.parameters, {**unused, "BODY": text}, num_warps=warps)
    return KernelCall(kernel=specialised, grid=(programs, 1, 1), arguments=arguments)
