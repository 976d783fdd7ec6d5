"""The fields of a step that determine the row of each sequence, and its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.select.attention_calls import NARROW, WIDE
from bringup.compile.kernels.select.tensors import Tensor, argument_of
from bringup.compile.schedule.graph.op_graph import Node, OpGraph

FLOATS = (WIDE, *NARROW)


@dataclass(frozen=True, slots=True)
class Rows:
    """The fields of a step that determine the row of each sequence, and its tokens; `starts` is None in decode."""

    starts: Tensor | None
    rows: Tensor
    lengths: Tensor

    @property
    def sequences(self) -> int:
        return self.rows.shape[0]


def rows_of_step(graph: OpGraph, node: Node) -> Rows:
    """The fields of the step among the arguments of a node."""
    starts, rows, lengths = (argument_of(graph, node, f"step_{name}") for name in ("starts", "rows", "lengths"))
    assert rows is not None
    assert lengths is not None
    return Rows(None if node.argument("step_decode") is True else starts, rows, lengths)
