"""The selectors, in order. The first that supports a group returns its kernel calls; unsupported groups are split."""

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
from bringup.compile.kernels.select.recurrent import causal_conv, delta_rule
from bringup.compile.schedule.graph.op_graph import Group, OpGraph
from bringup.compile.schedule.split import split_groups

# (function, one of its groups, architecture such as sm_90) -> the calls, or None if it does not support the group.
# The result depends on nothing else, so that equal functions have equal kernels.
Selector = Callable[[OpGraph, Group, str], tuple[KernelCall, ...] | None]
LARGEST_GRID = (2**31 - 1, 65535, 65535)  # in programs (CUDA C++ Programming Guide, "Technical Specifications")
SELECTORS: tuple[Selector, ...] = (
    attention,
    latent_attention,
    indexer,
    product,
    quant_product,
    fp8_product,
    experts,
    lora,
    causal_conv,
    delta_rule,
    rows,
    elements,
)
# Selectors with another parameter `drawn`, the result [B, V] of the group whose largest element of each row, with its
# column, the kernel keeps for sampling as well; see `keep_largest`.
HEADS = (product, quant_product, fp8_product)


def calls_of(graph: OpGraph, group: Group, capability: str) -> tuple[KernelCall, ...] | None:
    """The kernel calls of a group, in order; None if no selector supports it."""
    for select in SELECTORS:
        calls = select(graph, group, capability)
        if calls is not None and all(_fits(call) for call in calls):
            return calls
    return None


def head_calls_of(graph: OpGraph, group: Group, capability: str, drawn: str) -> tuple[KernelCall, ...] | None:
    """The kernel calls of a group that computes logits `drawn` [B, V] and keeps the largest; None if no kernel does."""
    found = (select(graph, group, capability, drawn) for select in HEADS)
    return next((calls for calls in found if calls is not None and all(map(_fits, calls))), None)


def split(graph: OpGraph, capability: str) -> OpGraph:
    """The function, with groups split until kernels of an architecture support each; see `split_groups`.

    Raises BU504 for an operation that no kernel supports.
    """
    return split_groups(graph, lambda own, group: calls_of(own, group, capability) is not None, capability)


def _fits(call: KernelCall) -> bool:
    """Whether the grid of a call is within the limits of devices."""
    return all(size <= most for size, most in zip(call.grid, LARGEST_GRID, strict=True))
