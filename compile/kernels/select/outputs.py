"""What a product's programs do with its elements, one lane a column: element-wise nodes, and rows of caches."""

from __future__ import annotations

from bringup.compile.kernels.code.index import At, Index
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.kernels.select.elements import sinks, store_row
from bringup.compile.schedule.graph.op_graph import Group, Node, View
from bringup.spec import Shape


def write_elements(code: Code, group: Group, lead: Index, shape: Shape) -> int:
    """Writes code for all that a group leaves in memory, and gives the number of lanes.

    `shape`: the product's, and `lead` the place of a program's rows in it. Raises NotTaken for results with other rows.
    """
    columns = shape[-1]
    results = [sink for sink in sinks(code.graph, group) if sink.name]
    widths = {sink.shape[-1] if sink.shape else 0 for sink in results} or {columns}
    if len(widths) != 1:
        raise NotTaken
    (lanes,) = widths
    for sink in results:
        if sink.shape[:-1] != shape[:-1]:
            raise NotTaken
        sink.write(code, (*lead, At("lane")), "live")
    for node in group.nodes:
        if node.short == "write_cache":
            if lanes != columns:
                raise NotTaken
            _write_columns(code, node, lead, columns)
    return lanes


def _write_columns(code: Code, node: Node, lead: Index, columns: int) -> None:
    """The columns of a product that are rows of a cache."""
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
    """(first column, columns from head to head) of heads [N, G, K] that are columns of a product [N, columns]."""
    tokens, heads, channels = rows.shape
    strided = (tokens == 1 or rows.strides[0] == columns) and (channels == 1 or rows.strides[2] == 1)
    step = rows.strides[1] if heads > 1 else channels
    if not strided or rows.offset + (heads - 1) * step + channels > columns:
        raise NotTaken
    return rows.offset, step
