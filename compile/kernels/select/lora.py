"""Selects the kernels for LoRAs: groups of one operation, or of a product with B and the addition of its result."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import power_of_two, rows_of
from bringup.compile.kernels.select.tensors import Tensor, argument_of, call_of, result_of, tensor_of
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph, View, whole

DTYPES = ("float32", "bfloat16", "float16")
RANKS = 4  # ranks that a program of `lora_shrink` computes
TILE = 4096  # elements of factors in a tile
MOST_RANK = 1024


@dataclass(frozen=True, slots=True)
class Factors:
    """A or B of all slots: [slots, experts, R, columns], or without the axis of experts.

    `slots`: the slot of each row, or of each sequence if there are `starts`. `expert`: the expert of each block of
    `rows` rows.
    """

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
    """The factors in argument `name` of a node; None if the kernels do not support their dtype or strides."""
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


def lora(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """One call for a group of LoRA operations; None for another group."""
    node, *after = group.nodes
    if node.short in ("lora_expand", "expert_lora_expand"):
        return _expand(graph, node, after)
    if after:
        return None
    match node.short:
        case "lora_shrink" | "expert_lora_shrink":
            return _shrink(graph, node)
        case "lora_lookup":
            return _lookup(graph, node)
        case "slots_to_blocks":
            return _slots_to_blocks(graph, node)
        case _:
            return None


def _shrink(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    x, factors = node.arguments[0], factors_of(graph, node, node.names[1])
    rows = _rows(x)
    if factors is None or rows is None or not isinstance(x, View):
        return None
    given = tensor_of(graph, x)
    if given.dtype not in DTYPES or factors.rank > MOST_RANK:
        return None
    ranks = min(RANKS, power_of_two(factors.rank))
    constants: dict[str, Constant] = {
        **{"R": factors.rank, "K": factors.columns, "X_ROW": rows[1], "RANKS": ranks},
        **{"BK": min(TILE // ranks, max(16, power_of_two(factors.columns)))},
        **factors.sequences,
        **factors.places,
    }
    parameters = {
        **{"x": given, "a": factors.tensor, "slots": factors.slots, "starts": factors.starts},
        **{"expert": factors.expert, "out": result_of(graph, node)},
    }
    grid = (-(-factors.rank // ranks), rows[0], 1)
    return (call_of("lora.lora_shrink", parameters, constants, grid, warps=4, stages=2),)


def _expand(graph: OpGraph, node: Node, after: list[Node]) -> tuple[KernelCall, ...] | None:
    h, factors = node.arguments[0], factors_of(graph, node, node.names[1])
    rows = _rows(h)
    if factors is None or rows is None or not isinstance(h, View) or factors.rank > MOST_RANK:
        return None
    out, other = result_of(graph, node), None
    if after:
        other = _added_to(graph, node, after)
        if other is None:
            return None
        out = result_of(graph, after[0])
    to = other and _rows(other)
    if other is not None and to is None:
        return None
    ranks = power_of_two(factors.rank)
    across = max(16, min(TILE // ranks, power_of_two(factors.columns)))
    constants: dict[str, Constant] = {
        **{"R": factors.rank, "C": factors.columns, "H_ROW": rows[1], "Y_ROW": to[1] if to else 0},
        **{"RANKS": ranks, "BN": across},
        **factors.sequences,
        **factors.places,
    }
    parameters = {
        **{"h": tensor_of(graph, h), "b": factors.tensor, "slots": factors.slots, "starts": factors.starts},
        **{"expert": factors.expert, "y": other and tensor_of(graph, other), "out": out},
    }
    grid = (-(-factors.columns // across), rows[0], 1)
    return (call_of("lora.lora_expand", parameters, constants, grid, warps=4, stages=2),)


def _added_to(graph: OpGraph, node: Node, after: list[Node]) -> View | None:
    """The tensor that the product is added to, if nothing else follows and both have one dtype; otherwise None."""
    (name,) = node.outputs
    if len(after) != 1 or after[0].short != "add" or after[0].argument("alpha") not in (1, None):
        return None
    sides, product = after[0].arguments[:2], whole(graph.buffers[name])
    others = [side for side in sides if isinstance(side, View) and side.buffer != name]
    if name in graph.planned or product not in sides or len(others) != 1:
        return None
    dtypes = {graph.buffers[each].dtype for each in (others[0].buffer, name, *after[0].outputs)}
    return others[0] if others[0].shape == product.shape and len(dtypes) == 1 else None


def _lookup(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    rows, factors = argument_of(graph, node, "rows_N"), factors_of(graph, node, "a_Srv")
    if rows is None or factors is None or not rows.is_dense or factors.rank > MOST_RANK:
        return None
    constants: dict[str, Constant] = {
        **{"R": factors.rank, "V": factors.columns, "RANKS": power_of_two(factors.rank)},
        **{"SLOT": factors.tensor.strides[0]},
        **factors.sequences,
    }
    parameters = {
        **{"rows": rows, "a": factors.tensor, "slots": factors.slots, "starts": factors.starts},
        **{"out": result_of(graph, node)},
    }
    return (call_of("lora.lora_lookup", parameters, constants, (rows.shape[0], 1, 1), warps=1, stages=1),)


def _slots_to_blocks(graph: OpGraph, node: Node) -> tuple[KernelCall, ...] | None:
    slot, row, count = argument_of(graph, node, "slot_N"), argument_of(graph, node, "row_NK"), node.argument("rows")
    if slot is None or row is None or not row.is_dense or not isinstance(count, int):
        return None
    out, high, choices = result_of(graph, node), power_of_two(count), row.shape[0] * row.shape[1]
    constants: dict[str, Constant] = {
        **{"F": choices, "SHARE": row.shape[1], "STRIDE": slot.strides[0], "R": count, "PR": high},
        **{"CHUNK": max(2, min(power_of_two(choices), TILE // high))},
    }
    parameters = {"slot": slot, "row": row, "out": out}
    return (call_of("lora.slots_to_blocks", parameters, constants, (out.shape[0], 1, 1), warps=4, stages=1),)


def _rows(value: object) -> tuple[int, int] | None:
    """(count, stride) of rows whose channels are contiguous; otherwise None."""
    return rows_of(value) if isinstance(value, View) and value.strides[-1] == 1 else None
