"""Code for the results of a product, with one column in each lane: element-wise nodes, rounding, and rows of caches."""

from __future__ import annotations

from bringup.compile.kernels.code.index import At, Index, count, linear
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.code.writer import WIDE, Code, NotTaken, Value
from bringup.compile.kernels.select.elements import sinks, store_row
from bringup.compile.kernels.select.sampling import SLOTS, slots_of
from bringup.compile.schedule.graph.op_graph import Group, Node, View, dense, whole
from bringup.spec import Shape

WIDEST_BLOCK = 128  # maximum lanes that share a scale


def write_elements(code: Code, group: Group, lead: Index, shape: Shape, drawn: str = "") -> int:
    """Writes code for all stores of a group. Returns the number of lanes.

    `shape` is that of the product, `lead` the index of a program's rows in it. `drawn`: the result, if any, whose
    largest element of each row is kept for sampling. Raises NotTaken for results with other rows.
    """
    columns = shape[-1]
    done = {name for node in group.nodes if node.short == "to_fp8" for name in node.outputs}
    results = [sink for sink in sinks(code.graph, group) if sink.name and sink.name not in done]
    widths = {sink.shape[-1] if sink.shape else 0 for sink in results} or {_rounded_columns(group, code) or columns}
    if len(widths) != 1:
        raise NotTaken
    (lanes,) = widths
    for sink in results:
        if sink.shape[:-1] != shape[:-1]:
            raise NotTaken
        sink.write(code, (*lead, At("lane")), "live")
        if sink.name == drawn:
            _keep_largest(code, drawn, lead)
    for node in group.nodes:
        if node.short == "write_cache":
            if lanes != columns:
                raise NotTaken
            _write_columns(code, node, lead, columns)
    return lanes


def _keep_largest(code: Code, name: str, lead: Index) -> None:
    """Writes code that keeps the largest element of each row [B, V] of a result, as it is stored, with its column."""
    rows, _ = code.graph.buffers[name].shape
    value = code.cast(code.element(name, (*lead, At("lane"))), "float")
    slots = code.counters(*slots_of(rows))
    code.lines.append(f"keep_largest({slots}, {value}, row, lane, live, first // lane.shape[1], {SLOTS})")


def _write_columns(code: Code, node: Node, lead: Index, columns: int) -> None:
    """Writes code that stores the columns of a product that are rows of a cache."""
    cache, slots, rows = (node.argument(key) for key in ("cache_SGK", "slots_N", "rows_NGK"))
    if not (isinstance(cache, View) and isinstance(slots, View) and isinstance(rows, View)):
        raise NotTaken
    begin, step = columns_of(rows, columns)
    if rows.buffer not in code.bases or len(lead) != 1:
        raise NotTaken
    _, heads, channels = rows.shape
    lane = (At("lane"),)
    head = code.variable(f"(lane - {begin}) // {step}", lane) if heads > 1 else ""
    channel = code.variable(f"lane - {begin} - {head} * {step}" if head else f"lane - {begin}", lane)
    bound = f"({head} < {heads}) & (lane >= {begin})" if head else f"(lane >= {begin})"
    inside = code.variable(f"live & {bound} & ({channel} >= 0) & ({channel} < {channels})", lane)
    value = code.element(rows.buffer, (*lead, At("lane")))
    slot = code.at(slots, lead)
    place = (At(slot.text), At(head) if head else At(), At(channel))
    store_row(code, cache, place, value.text, inside)


def columns_of(rows: View, columns: int) -> tuple[int, int]:
    """(first column, columns from head to head) of heads [N, G, K] that are columns of a product [N, columns].

    Raises NotTaken if they are not.
    """
    tokens, heads, channels = rows.shape
    strided = (tokens == 1 or rows.strides[0] == columns) and (channels == 1 or rows.strides[2] == 1)
    step = rows.strides[1] if heads > 1 else channels
    if not strided or rows.offset + (heads - 1) * step + channels > columns:
        raise NotTaken
    return rows.offset, step


def is_rounding(node: Node, taken: bool) -> bool:
    """Whether a node rounds rows to float8. Raises NotTaken for such a node if `taken` is false."""
    if node.short == "to_fp8" and not taken:
        raise NotTaken
    return node.short == "to_fp8"


def write_rounded(code: Code, node: Node, lead: Index, shape: Shape) -> int:
    """Writes code that rounds the elements of a product to float8. Returns the number of lanes that share a scale.

    A tile must consist of complete groups of these lanes. `shape` and `lead` are those of `write_elements`.
    """
    x, columns = node.arguments[0], node.argument("columns")
    codes, scales = (code.graph.buffers[name] for name in node.outputs)
    if node.argument("scale") is not None:
        raise NotTaken
    if not isinstance(x, View) or not isinstance(columns, int) or power_of_two(columns) != columns:
        raise NotTaken
    if columns > WIDEST_BLOCK or x != whole(code.graph.buffers[x.buffer]) or x.shape[:-1] != shape[:-1]:
        raise NotTaken
    index = (*lead, At("lane"))
    value = code.cast(code.element(x.buffer, index), "float")
    own = code.variable(f"scales_of({value}, live, {columns})", index)
    text = f"to_float8_e4m3fn(quotient({value}, spread({own}, {columns})), {code.native_fp8})"
    code.store(codes, index, Value(code.variable(text, index), "int"), "live")
    row, _ = linear(dense(scales.shape), (*lead, At()), wide=count(scales.shape) >= WIDE)
    places = f"of_block({row} + lane // {columns}, {columns})"
    code.lines.append(
        f"tl.store({code.pointer(scales)} + {places}, {own}, mask=of_block(live.to(tl.int32), {columns}) > 0)"
    )
    return columns


def _rounded_columns(group: Group, code: Code) -> int:
    """The number of columns that a group rounds; 0 if it rounds none."""
    widths = {code.graph.buffers[node.outputs[0]].shape[-1] for node in group.nodes if node.short == "to_fp8"}
    return widths.pop() if len(widths) == 1 else 0
