"""The factors of LoRAs, and whose a row has, as all kernels of LoRAs take them."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.call import Constant
from bringup.compile.kernels.code.types import power_of_two
from bringup.compile.kernels.select.tensors import Tensor, argument_of
from bringup.compile.schedule.graph.op_graph import Node, OpGraph

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Factors:
    """A or B of all slots, [slots, experts, R, columns] or without experts. `slots`: of each row, or of each sequence
    where there are `starts`; `expert`: of each block of `rows` rows."""

    tensor: Tensor
    slots: Tensor
    starts: Tensor | None
    expert: Tensor | None
    rows: int

    @property
    def rank(self) -> int:
        return self.tensor.shape[-2]

    @property
    def columns(self) -> int:
        return self.tensor.shape[-1]

    @property
    def sequences(self) -> dict[str, Constant]:
        """The constants of `slot_of`."""
        count = self.slots.shape[0] if self.starts is not None else 1
        return {"B": count, "ENDS": power_of_two(count)}

    @property
    def places(self) -> dict[str, Constant]:
        """The constants of `factors_of`."""
        expert = self.tensor.strides[1] if self.expert is not None else 0
        return {"ROWS": self.rows, "SLOT": self.tensor.strides[0], "EXPERT": expert}


def factors_of(graph: OpGraph, node: Node, name: str) -> Factors | None:
    """Those of an argument of an operation; None where it lies otherwise than kernels take it."""
    tensor, slots, starts = (argument_of(graph, node, each) for each in (name, "slots_B", "step_starts"))
    expert, of_rows = (argument_of(graph, node, each) for each in ("expert_B", "slot_BR"))
    slots = of_rows or slots
    if tensor is None or slots is None or not tensor.is_dense or not slots.is_dense or tensor.dtype not in DTYPES:
        return None
    if expert is not None and not expert.is_dense:
        return None
    by_row = of_rows is not None or node.argument("step_decode") is True
    rows = slots.shape[1] if of_rows is not None else 1
    return Factors(tensor, slots, None if by_row else starts, expert, rows)
