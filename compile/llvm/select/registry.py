"""The selectors, in order. The calls of a group are those of the first selector that supports it."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.select.attention import attention
from bringup.compile.llvm.select.batches import batches
from bringup.compile.llvm.select.call import Call
from bringup.compile.llvm.select.elements import elements
from bringup.compile.llvm.select.experts import experts
from bringup.compile.llvm.select.general import general
from bringup.compile.llvm.select.indexer import indexer
from bringup.compile.llvm.select.lora import lora
from bringup.compile.llvm.select.products import products
from bringup.compile.llvm.select.quant import quant
from bringup.compile.llvm.select.recurrent import recurrent
from bringup.compile.llvm.select.rows import rows
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

# (function, one of its groups, processor) -> the calls of the group; None if it does not support the group.
Selector = Callable[[OpGraph, Group, Machine], tuple[Call, ...] | None]
SELECTORS: tuple[Selector, ...] = (
    attention,
    products,
    quant,
    batches,
    experts,
    indexer,
    lora,
    recurrent,
    rows,
    elements,
    general,
)


def calls_of(graph: OpGraph, group: Group, machine: Machine) -> tuple[Call, ...] | None:
    """The calls of a group, in order; None if no kernel supports the group as it is."""
    return next((found for select in SELECTORS if (found := select(graph, group, machine)) is not None), None)
