"""The selectors in order: the first that takes a group gives its kernel calls, and none takes what is split."""

from __future__ import annotations

from collections.abc import Callable

from bringup.compile.kernels.call import KernelCall
from bringup.compile.kernels.select.attention import attention
from bringup.compile.kernels.select.elements import elements, rows
from bringup.compile.kernels.select.experts import experts
from bringup.compile.kernels.select.fp8_products import fp8_product
from bringup.compile.kernels.select.indexer import indexer
from bringup.compile.kernels.select.latent_attention import latent_attention
from bringup.compile.kernels.select.lora import lora
from bringup.compile.kernels.select.products import product
from bringup.compile.kernels.select.quant_products import quant_product
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.split import split_groups

# (function, one of its groups, architecture such as sm_90) -> the calls, None where it does not take the group.
# A selector depends on nothing else, so that equal functions have equal kernels.
Selector = Callable[[OpGraph, Group, str], tuple[KernelCall, ...] | None]
LARGEST_GRID = (2**31 - 1, 65535, 65535)  # programs (CUDA C++ Programming Guide, "Technical Specifications")
SELECTORS: tuple[Selector, ...] = (
    attention,
    latent_attention,
    indexer,
    product,
    quant_product,
    fp8_product,
    experts,
    lora,
    rows,
    elements,
)


def calls_of(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """The kernel calls of a group, in order; None where no kernel takes it as it is."""
    for select in SELECTORS:
        calls = select(graph, group, capability)
        if calls is not None and all(_fits(call) for call in calls):
            return calls
    return None


def split(graph: OpGraph, capability: str) -> OpGraph:
    """The function with groups that kernels of an architecture take, as `split_groups`.

    Raises BU504 for an operation that no kernel takes.
    """
    return split_groups(graph, lambda own, group: calls_of(own, group, capability) is not None, capability)


def _fits(call: KernelCall) -> bool:
    """Whether a device starts so many programs."""
    return all(size <= most for size, most in zip(call.grid, LARGEST_GRID, strict=True))
