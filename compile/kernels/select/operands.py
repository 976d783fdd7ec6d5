"""The operands of a matrix product: rows of activations, with the norm that precedes it, and a weight."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.code.index import count
from bringup.compile.kernels.code.types import rows_of
from bringup.compile.kernels.code.writer import NotTaken
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View, whole
from bringup.compile.schedule.graph.roles import NORMS

OF_EXPERTS = frozenset({"expert_linear", "quant_experts", "fp8_experts"})


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm that the programs of a product apply to its rows."""

    kind: str  # "rms" or "layer"
    scale: View
    shift: View | None
    eps: float
    offset: float
    round_last: bool


@dataclass(frozen=True, slots=True)
class Input:
    """Rows of activations: `rows` rows, `stride` elements apart; if `batch` is not 0, in each of `batch` blocks.

    `share` consecutive blocks have the same row of x.
    """

    x: View
    rows: int
    stride: int
    batch: int
    share: int
    norm: Norm | None


@dataclass(frozen=True, slots=True)
class Factor:
    """The weight of a product: [columns, K], or [experts, columns, K] with the `expert` of each block.

    For a packed weight, `weight` is the view of its codes.
    """

    node: Node
    weight: View
    bias: View | None
    expert: View | None


def weight_of(graph: OpGraph, node: Node) -> Factor:
    """The weight of a node, with bias and experts. Raises NotTaken if its channels are not contiguous."""
    experts = node.short in OF_EXPERTS
    weight = node.argument("weight_eoi" if experts else "weight")
    if not isinstance(weight, View) or weight.strides[-1] != 1 or len(weight.shape) != 2 + experts:
        raise NotTaken
    return factor_of(graph, node, weight)


def factor_of(graph: OpGraph, node: Node, weight: View) -> Factor:
    """A weight with the bias and the experts of its product. Raises NotTaken if `expert` is not a complete buffer."""
    keys = ("bias_eo", "expert_B") if node.short in OF_EXPERTS else ("bias", "")
    bias, expert = (node.argument(key) for key in keys)
    if not isinstance(bias, View | None) or not isinstance(expert, View | None):
        raise NotTaken
    if expert is not None and (len(expert.shape) != 1 or expert != whole(graph.buffers[expert.buffer])):
        raise NotTaken
    return Factor(node, weight, bias, expert)


def input_of(graph: OpGraph, group: Group, products: list[Node]) -> Input:
    """The rows that all products of a group read. Raises NotTaken for different rows or rows without a fixed stride."""
    x = products[0].arguments[0]
    before = group.nodes[: group.nodes.index(products[0])]
    if not isinstance(x, View) or any(node.arguments[0] != x for node in products):
        raise NotTaken
    blocks = x.shape[0] if products[0].short in OF_EXPERTS else 0
    norm, share = None, 1
    for node in reversed(before):
        (name,) = node.outputs
        if name != x.buffer or name in graph.planned or x != _all_of(graph, name, x):
            raise NotTaken
        source = node.arguments[0]
        if not isinstance(source, View):
            raise NotTaken
        if node.short in NORMS and not blocks and norm is None:
            norm = _norm(node)
        elif node.short == "to_blocks" and node.argument("blocks_rows") == 1:
            rows = node.argument("blocks_row_NK")
            if not isinstance(rows, View):
                raise NotTaken
            share = rows.shape[1]
        else:
            raise NotTaken
        x = source
    found = rows_of(x)
    if found is None or x.strides[-1] != 1:
        raise NotTaken
    total, stride = found
    rows = (total if share == 1 else total * share) // max(1, blocks)
    if rows > 1 and share > 1:
        raise NotTaken
    return Input(x, rows, stride, blocks, share, norm)


def _all_of(graph: OpGraph, name: str, view: View) -> View:
    """The view, if it has all rows of a buffer in order, in any shape. Raises NotTaken otherwise."""
    buffer = graph.buffers[name]
    same = count(view.shape) == count(buffer.shape) and view.shape[-1] == buffer.shape[-1] and view.offset == 0
    if not same or rows_of(view) not in ((count(buffer.shape[:-1]), buffer.shape[-1]), (1, 0)):
        raise NotTaken
    return view


def _norm(node: Node) -> Norm:
    scale, shift, eps = node.argument("weight"), node.argument("bias"), node.argument("eps")
    offset, last = node.argument("offset") or 0.0, bool(node.argument("round_last"))
    if not isinstance(scale, View) or not isinstance(shift, View | None) or not isinstance(eps, float):
        raise NotTaken
    if scale.strides != (1,) or (shift is not None and shift.strides != (1,)) or not isinstance(offset, float | int):
        raise NotTaken
    return Norm("rms" if node.short == "rms_norm" else "layer", scale, shift, eps, float(offset), last)
