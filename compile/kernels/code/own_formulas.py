"""Expressions of bringup's own operations that move elements: rope, rows of caches, blocks of experts, packed rows."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.compile.kernels.code.dequantised import Places, dequantised, packed_of
from bringup.compile.kernels.code.index import At, Index, broadcast, linear
from bringup.compile.kernels.code.writer import Code, Formula, NotTaken, Value
from bringup.compile.schedule.graph.op_graph import Node, View
from bringup.graphs.core.step import BLOCK


def _rope(code: Code, node: Node, name: str, index: Index) -> Value:
    """A channel of a head, rotated together with the other channel of its pair."""
    x, cos, sin = (node.argument(key) for key in ("x_NHK", "cos_NC", "sin_NC"))
    if not (isinstance(x, View) and isinstance(cos, View) and isinstance(sin, View)):
        raise NotTaken
    row, head, channel = index
    half, width = cos.shape[1], x.shape[2]
    if node.argument("interleaved"):
        pair, second = f"{channel.text} // 2", f"{channel.text} % 2 == 1"
        partner = f"tl.where({second}, {channel.text} - 1, {channel.text} + 1)"
    else:
        pair, second = f"{channel.text} % {half}", f"{channel.text} >= {half}"
        partner = f"tl.where({second}, {channel.text} - {half}, {channel.text} + {half})"
    rotary = 2 * half
    at = At(code.variable(f"tl.where({channel.text} < {rotary}, {pair}, 0)", index))
    with_ = At(code.variable(f"tl.where({channel.text} < {rotary}, {partner}, 0)", index))
    own, other = code.at(x, index), code.at(x, (row, head, with_))
    c, s = code.at(cos, (row, at)), code.at(sin, (row, at))
    text = f"{own.text} * {c.text} + tl.where({second}, {other.text} * {s.text}, -({other.text} * {s.text}))"
    if rotary < width:
        text = f"tl.where({channel.text} < {rotary}, {text}, {own.text})"
    return code.given(text, code.graph.buffers[name], index)


def _from_blocks(code: Code, node: Node, name: str, index: Index) -> Value:
    """The weighted sum of the rows that a token's experts computed."""
    y, weights, rows = (node.argument(key) for key in ("y_BRm", "weights_NK", "blocks_row_NK"))
    if not (isinstance(y, View) and isinstance(weights, View) and isinstance(rows, View)):
        raise NotTaken
    token, channel = index
    text, inner = "", y.shape[1]
    for choice in range(rows.shape[1]):
        place = code.at(rows, (token, At("", 1, choice)))
        block = At(code.variable(f"{place.text} // {inner}", (token,)))
        row = At(code.variable(f"{place.text} % {inner}", (token,))) if inner > 1 else At()
        weight = code.at(weights, (token, At("", 1, choice)))
        part = code.at(y, (block, row, channel))
        text = f"{text} + {part.text} * {weight.text}" if text else f"{part.text} * {weight.text}"
    return code.given(text, code.graph.buffers[name], index)


def _to_blocks(code: Code, node: Node, name: str, index: Index) -> Value:
    """A copy of a token's row for each of its experts, if every block has a single row."""
    x, rows = node.argument("x_Nm"), node.argument("blocks_row_NK")
    if node.argument("blocks_rows") != 1 or not isinstance(x, View) or not isinstance(rows, View):
        raise NotTaken
    block, _, channel = index
    token = At(code.variable(f"{block.text} // {rows.shape[1]}", (block,))) if block.symbol else At(
        "", 1, block.offset // rows.shape[1]
    )  # fmt: skip
    return code.at(x, broadcast(x, (token, channel)))


def _rows_of_experts(code: Code, node: Node, name: str, index: Index) -> Value:
    """The expert and the row of each block, if every block has a single row: one block for each choice, in order."""
    chosen = node.argument("selected_NK")
    if node.argument("R") != 1 or not isinstance(chosen, View):
        raise NotTaken
    choices = chosen.shape[1]
    if name == node.outputs[0]:
        token, choice = code.unflat(index[0], chosen.shape)
        return code.at(chosen, (token, choice))
    text, _ = linear((choices, 1), index)
    return Value(
        code.variable(f"({text}) + tl.zeros_like({index[0].symbol or index[1].symbol or 'live'}).to(tl.int64)", index),
        "int",
    )


def _cached_rows(code: Code, node: Node, name: str, index: Index) -> Value:
    """A row of a cache, by its sequence and its position in the sequence."""
    cache, ring = node.argument("cache_SGK"), node.argument("ring")
    table, rows = node.argument("step_block_table"), node.argument("step_rows")
    if not (isinstance(cache, View) and isinstance(table, View) and isinstance(rows, View)):
        raise NotTaken
    sequence, place, *rest = index
    if not node.argument("step_contiguous") and isinstance(ring, int):
        row = code.variable(f"{code.at(rows, (sequence,)).text} * {ring} + {place.text}", index[:2])
        place = At(row)
    elif not node.argument("step_contiguous"):
        block = At(code.variable(f"{place.text} // {BLOCK}", index[:2]))
        first = code.at(table, (sequence, block))
        place = At(code.variable(f"{first.text} * {BLOCK} + {place.text} % {BLOCK}", index[:2]))
    return code.at(cache, (place, *rest))


def _quant_embedding(code: Code, node: Node, name: str, index: Index) -> Value:
    """An element of a row of a packed table."""
    rows = node.argument("rows_N")
    if not isinstance(rows, View):
        raise NotTaken
    return _number(code, node, name, (At(code.at(rows, index[:-1]).text), index[-1]), index)


def _dequantise(code: Code, node: Node, name: str, index: Index) -> Value:
    return _number(code, node, name, index, index)


def _number(code: Code, node: Node, name: str, place: Index, index: Index) -> Value:
    """The element at `place` of a packed weight, as the result's element at `index`."""
    text = dequantised(code, packed_of(node), Places(place, place))
    return code.given(text, code.graph.buffers[name], index)


OWN_FORMULAS: Mapping[str, Formula] = {
    "rope": _rope,
    "from_blocks": _from_blocks,
    "to_blocks": _to_blocks,
    "rows_of_experts": _rows_of_experts,
    "cached_rows": _cached_rows,
    "quant_embedding": _quant_embedding,
    "dequantise": _dequantise,
}
