"""Groups of element-wise operations, copies and look-ups: code from their nodes, one program a block of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.code.formulas import FORMULAS
from bringup.compile.kernels.code.index import At, Index, count
from bringup.compile.kernels.code.types import TYPES, kernel
from bringup.compile.kernels.code.writer import POINTER_LIMIT, Code, NotTaken
from bringup.compile.schedule.graph.op_graph import Group, OpGraph, View

BLOCK, WARPS = 512, 4
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float16": 65504.0}


@dataclass(frozen=True, slots=True)
class Sink:
    """What a group leaves in memory: `write` adds the lines that store what is at an index of `shape`.

    `name`: the result that it is, "" for rows of a cache.
    """

    name: str
    shape: tuple[int, ...]
    write: Callable[[Code, Index, str], None]


def sinks(graph: OpGraph, group: Group) -> Iterator[Sink]:
    """The results that outlive a group, and the rows that it writes to caches."""
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
    """Writes to a cache, in its dtype; what is beyond its range becomes its largest number."""
    buffer = code.graph.buffers[cache.buffer]
    if buffer.dtype in LARGEST:
        value = f"minimum(maximum({value}, {-LARGEST[buffer.dtype]}), {LARGEST[buffer.dtype]})"
    where = code.address(buffer, cache.strides, place, cache.offset)
    code.lines.append(f"tl.store({where}, ({value}).to({TYPES[buffer.dtype]}), mask={mask})")


def elements(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One launch of `elements`: a range of programs for each result, its code chosen by the program's number."""
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


def call_of(code: Code, body: list[str], programs: int, warps: int) -> KernelCall:
    """A launch of `elements` with a body."""
    names = [f"p{n}" for n in range(POINTER_LIMIT)]
    text = "\n    ".join([f"def body(pid, {', '.join(names)}):", *body]) + "\n"
    unused = {name: None for name in names[len(code.parameters) :]}
    specialised, arguments = kernel("elements", code.parameters, {**unused, "BODY": text}, num_warps=warps)
    return KernelCall(kernel=specialised, grid=(programs, 1, 1), arguments=arguments)
