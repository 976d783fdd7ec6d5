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

BLOCK, WARPS = 512, 4
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
            yield _rows(cache, slots, rows)
        elif node.updates:
            raise NotTaken


def _result(graph: OpGraph, name: str) -> Sink:
    buffer = graph.buffers[name]
    return Sink(
        name, buffer.shape, lambda code, index, mask: code.store(buffer, index, code.element(name, index), mask)
    )


def _rows(cache: View, slots: View, rows: View) -> Sink:
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
        for number, sink in enumerate(found):
            blocks = -(-count(sink.shape) // BLOCK)
            head = "if" if number == 0 else "elif"
            if len(found) > 1:
                body.append(f"{head} pid < {begin + blocks}:" if number < len(found) - 1 else "else:")
            indent = "    " if len(found) > 1 else ""
            body += [indent + line for line in _section(code, sink, begin)]
            begin += blocks
    except NotTaken:
        return None
    if not found:
        return None
    return (call_of(code, body, begin, WARPS),)


def _section(code: Code, sink: Sink, begin: int) -> list[str]:
    size = count(sink.shape)
    wide = ".to(tl.int64)" if size >= 2**31 - BLOCK else ""
    first = len(code.lines)
    code.lines.append(f"i = (pid - {begin}){wide} * {BLOCK} + tl.arange(0, {BLOCK})")
    code.lines.append(f"live = i < {size}")
    code.restart({"i": "live"})
    sink.write(code, code.unflat(At("i"), sink.shape), "live")
    return code.lines[first:]


def rows(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call of `elements` in which each program computes some complete rows, or None.

    All axes but the last are merged.
    """
    if not any(node.short in ROW_FORMULAS for node in group.nodes):
        return None
    short = {name for node in group.nodes if _drops_axis(node) for name in node.outputs}
    shapes = [graph.buffers[name].shape for node in group.nodes for name in node.outputs if name not in short]
    shapes += [view.shape for node in group.nodes if node.short in ROW_FORMULAS for view in node.views[:1]]
    if any(not shape for shape in shapes):
        return None
    counts, widths = {count(shape[:-1]) for shape in shapes}, sorted({shape[-1] for shape in shapes})
    rounded = {node.short for node in group.nodes} & set(ROW_FORMULAS) == {"to_fp8"}
    if len(counts) != 1 or power_of_two(widths[-1]) > (WIDEST_ALONE if rounded else WIDEST):
        return None
    (total,) = counts
    widest = power_of_two(widths[-1])
    each = max(1, min(power_of_two(total), TILE // widest))
    lanes = {width: f"c{width}" for width in widths}
    body = [f"row = pid * {each} + tl.arange(0, {each})[:, None]", f"live_row = row < {total}"]
    for width, lane in lanes.items():
        body.append(f"{lane} = tl.arange(0, {power_of_two(width)})[None, :]")
        body.append(f"live_{lane} = live_row & ({lane} < {width})")
    code = Code(graph, group, FORMULAS, {"row": "live_row", **{lane: f"live_{lane}" for lane in lanes.values()}}, lanes)
    code.native_fp8 = has_fp8(capability)
    try:
        for sink in sinks(graph, group):
            if sink.name in short:
                sink.write(code, code.unflat(At("row"), sink.shape), "live_row")
                continue
            lane = lanes[sink.shape[-1]]
            sink.write(code, (*code.unflat(At("row"), sink.shape[:-1]), At(lane)), f"live_{lane}")
    except (NotTaken, KeyError):
        return None
    warps = max(1, min(8, each * widest // 256), widest // 2048 if rounded else 1)
    return (call_of(code, body + code.lines, -(-total // each), warps),)


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
