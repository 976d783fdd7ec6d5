"""The cost of a launch: bytes read from and written to memory, and floating-point operations.

Each byte is counted once per launch, however many programs or kernels of the launch read it; scratch memory of kernels
is not counted. The bytes read of a cache follow from the number of keys of each sequence. For experts and LoRAs an
upper bound is counted: as if every token selected a different one, and each block were full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from bringup.compile.schedule.graph.op_graph import Buffer, Group, Node, OpGraph, View
from bringup.compile.schedule.graph.roles import Role, role_of
from bringup.spec import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes read of `weights` (including tables), of `cache` (including slots of LoRAs), and of `other` buffers
    (temporaries, values, the step); bytes `written`; `flops`, where a multiplication and an addition count as two.
    """

    weights: int = 0
    cache: int = 0
    other: int = 0
    written: int = 0
    flops: int = 0

    @property
    def nbytes(self) -> int:
        """All bytes, read and written."""
        return self.weights + self.cache + self.other + self.written

    def __add__(self, more: Cost) -> Cost:
        return Cost(
            weights=self.weights + more.weights,
            cache=self.cache + more.cache,
            other=self.other + more.other,
            written=self.written + more.written,
            flops=self.flops + more.flops,
        )


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return sum(costs, Cost())


def cost_of(graph: OpGraph, group: Group, keys: int) -> Cost:
    """The cost of one launch of a group, in a step after which each sequence has `keys` keys in its caches."""
    size = _Size(graph, keys)
    read, written = _traffic(size, group)
    by_kind: dict[str, int] = {}
    for name, nbytes in read.items():
        kind = graph.buffers[name].kind
        by_kind[kind] = by_kind.get(kind, 0) + nbytes
    return Cost(
        weights=by_kind.pop("weight", 0),
        cache=by_kind.pop("state", 0),
        other=sum(by_kind.values()),
        written=sum(written.values()),
        flops=sum(map(size.flops, group.nodes)),
    )


def bytes_by_buffer(graph: OpGraph, group: Group, keys: int) -> dict[str, int]:
    """What one launch of a group reads and writes of each buffer, in bytes; `keys` as in `cost_of`."""
    read, written = _traffic(_Size(graph, keys), group)
    return {name: read.get(name, 0) + written.get(name, 0) for name in read.keys() | written.keys()}


def _traffic(size: _Size, group: Group) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read, and bytes written, by buffer."""
    graph = size.graph
    read: dict[tuple[str, View], int] = {}
    written = {name: graph.buffers[name].nbytes for name in group.outputs & graph.planned}
    for node in group.nodes:
        for view, nbytes in size.reads(node):
            if view.buffer not in group.outputs:
                key = view.buffer, view
                read[key] = max(read.get(key, 0), nbytes)
        for name in node.updates:
            written[name] = size.rows_written(node, graph.buffers[name])
    return dict(_once(graph, read)), written


def _once(graph: OpGraph, read: dict[tuple[str, View], int]) -> Iterator[tuple[str, int]]:
    """The bytes read of each buffer: the sum over its views, at most the size of the buffer."""
    sums: dict[str, int] = {}
    for (name, _), nbytes in read.items():
        sums[name] = sums.get(name, 0) + nbytes
    for name, nbytes in sums.items():
        yield name, min(nbytes, graph.buffers[name].nbytes)


@dataclass(frozen=True, slots=True)
class _Size:
    """The sizes of a step: bytes that its nodes read and write, and their operations."""

    graph: OpGraph
    keys: int

    @property
    def sequences(self) -> int:
        return self.graph.buffers["step:rows"].shape[0]

    def reads(self, node: Node) -> Iterator[tuple[View, int]]:
        """Each tensor that a node reads, and the number of bytes read of it."""
        views = node.views
        for number, view in enumerate(views):
            buffer = self.graph.buffers[view.buffer]
            if view.buffer in node.updates:
                if role_of(node) is Role.RECURRENT:
                    yield view, self.rows_written(node, buffer)
                continue
            nbytes = _nbytes(buffer, view.elements)
            if buffer.kind == "state" and "lora_" in node.short:
                nbytes = self._of_loras(node, view, nbytes)
            elif buffer.kind == "state":
                nbytes = self._rows(node, view, buffer)
            elif node.short in ("quant_embedding", "quant_experts", "fp8_experts"):
                nbytes = _chosen(node, view, nbytes)
            elif role_of(node) is Role.GATHER and number == 0:
                nbytes = sum(self.graph.buffers[name].nbytes for name in node.outputs)
            elif node.short == "expert_linear" and number in (1, 2) and view.buffer != views[-1].buffer:
                nbytes = nbytes * min(views[0].shape[0], view.shape[0]) // view.shape[0]
            yield view, nbytes

    def _of_loras(self, node: Node, view: View, nbytes: int) -> int:
        """The bytes read of LoRA factors: one slot for each sequence, and in it one expert for each block."""
        if node.short == "lora_lookup":
            return sum(self.graph.buffers[name].nbytes for name in node.outputs)
        read = nbytes * min(view.shape[0], self.sequences) // view.shape[0]
        if node.short.startswith("expert"):
            read = read * min(view.shape[1], node.views[0].shape[0]) // view.shape[1]
        return read

    def _rows(self, node: Node, view: View, buffer: Buffer) -> int:
        """The bytes of a cache that attention reads: the keys that the queries of every sequence attend to."""
        seen = self.keys
        for name in ("window", "ring"):
            limit = node.argument(name)
            if isinstance(limit, int):
                seen = min(seen, self._with_queries(limit) if name == "window" else limit)
        row = view.elements // view.shape[0]
        return _nbytes(buffer, min(view.shape[0], self.sequences * seen) * row)

    def _with_queries(self, window: int) -> int:
        """The number of keys that the queries of a sequence attend to: the window of the first, and later tokens."""
        return window + self.graph.buffers["step:tokens"].shape[0] // self.sequences - 1

    def rows_written(self, node: Node, buffer: Buffer) -> int:
        """The bytes of a cache that a step writes: a row for each token, or of recurrent states for each sequence."""
        tokens = self.graph.buffers["step:tokens"].shape[0]
        rows = self.sequences if role_of(node) is Role.RECURRENT else tokens
        return buffer.nbytes // buffer.shape[0] * rows

    def flops(self, node: Node) -> int:
        """The floating-point operations of a node."""
        views, given = node.views, [self.graph.buffers[name].shape for name in node.outputs]
        elements = sum(map(math.prod, given))
        match role_of(node):
            case Role.PRODUCT:
                return 2 * elements * views[0].shape[-1]
            case Role.ATTENTION:
                return self._attention(node, views)
            case Role.RECURRENT:
                return self._recurrent(node, elements)
            case Role.GATHER | Role.MOVE | Role.CACHE:
                return 0
            case _:
                return elements

    def _attention(self, node: Node, views: list[View]) -> int:
        """Each query has 2 operations per channel and key for its scores, and 2 per channel and value for its sum."""
        (tokens, heads, *_), caches = views[0].shape, [v for v in views[1:] if self._kind(v) == "state"]
        seen = self._seen(node, tokens // self.sequences)
        if node.short == "latent_attention":
            return self._latent(node, tokens, seen)
        if node.short == "index_scores":
            return int(2 * tokens * heads * (views[0].shape[2] + 1) * self.keys)
        channels = sum(view.shape[-1] for view in caches or views[1:3])
        return int(2 * tokens * heads * channels * seen)

    def _recurrent(self, node: Node, elements: int) -> int:
        """A convolution has 2 operations for each tap. A state space has 5 for each element of a state: its decay, and
        2 each for its update and its product with the query; the delta rule 2 more, for the product with the key."""
        if node.short == "causal_conv":
            return 2 * elements * node.views[1].shape[1]
        each = {"state_space": 5, "gated_delta_rule": 7}[node.short]
        return each * elements * node.views[0].shape[2]

    def _latent(self, node: Node, tokens: int, seen: float) -> int:
        """Operations of MLA in the form with fewer; see `graphs.ops.latent_attention.cheaper_form`."""
        names = ("q_NHn", "rows_S1r", "to_keys_xc", "to_values_yc")
        queries, rows, to_keys, to_values = (cast("View", node.argument(name)) for name in names)
        (_, h, n), c, width = queries.shape, to_keys.shape[1], rows.shape[-1]
        v, p = to_values.shape[0] // h, width - c
        absorbed = 2 * tokens * (h * (width + c) * seen + to_keys.elements + to_values.elements)
        keys = self.sequences * self.keys
        direct = 2 * (keys * (to_keys.elements + to_values.elements) + tokens * h * (n + p + v) * seen)
        return int(min(absorbed, direct))

    def _seen(self, node: Node, queries: int) -> float:
        """The number of keys that a query attends to, averaged over the last `queries` positions of a sequence."""
        window = node.argument("window")
        at_most = window if isinstance(window, int) else self.keys
        return sum(min(self.keys - back, at_most) for back in range(queries)) / queries

    def _kind(self, view: View) -> str:
        return self.graph.buffers[view.buffer].kind


def _chosen(node: Node, view: View, nbytes: int) -> int:
    """The bytes read of an array of a quantised weight, if only some indices of its first axis are read."""
    numbers = node.argument("rows_N") or node.argument("expert_B")
    others = (node.argument(key) for key in ("scales_BRk", "weight_table", "weight_scale_table"))
    if not isinstance(numbers, View) or view in (node.arguments[0], numbers, *others) or view.shape[0] == 1:
        return nbytes
    return min(nbytes, numbers.elements * (nbytes // view.shape[0]))


def _nbytes(buffer: Buffer, elements: int) -> int:
    return DTYPES[buffer.dtype].nbytes((elements,))
