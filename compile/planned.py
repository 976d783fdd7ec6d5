"""The plan of a job's parameters, quantised if the deployment requests it."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.apply.quantise import Recipe, quantise, recipe_of
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.schemes.stored_source import is_converted
from bringup.diagnostics import fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import packable
from bringup.graphs.core.signature import Declared
from bringup.spec import TensorInfo


def planned(graph: Graph, adapter: Adapter, headers: Mapping[str, TensorInfo]) -> Plan:
    """The plan of a graph's parameters; with `GraphOptions.quantize`, of quantised ones.

    Those are the matrices of linear layers and experts, except routers, heads, and those that a rule reads as plain
    tensors (`S(…, plain=True)`). Raises BU413 for an unknown recipe, BU414 if one of these matrices cannot be quantised
    by it.
    """
    plan = make_plan(graph.signature(), adapter, headers)
    if graph.options.quantize is None:
        return plan
    recipe, layers = recipe_of(graph.options.quantize), packable(graph)
    signature = graph.signature()
    names = [
        name
        for name in plan.entries
        if name in layers and is_converted(signature[name].axes) and not _is_plain(adapter, signature[name])
    ]
    found = quantise(plan, recipe, names)
    for name, reason in found.left.items():
        message = f"`{name}` cannot be quantised by {recipe.name}: {reason}"
        raise fail("BU414", message, help=_help(plan, recipe, names, name), parameter=name)
    return found.plan


def _is_plain(adapter: Adapter, declared: Declared) -> bool:
    """Whether the rule of a parameter reads a tensor that no checkpoint quantises."""
    return any(
        leaf.plain for rule, bindings in adapter.rules_of(declared) for leaf, _ in rule.own_expr.leaves(bindings)
    )


def _help(plan: Plan, recipe: Recipe, names: list[str], refused: str) -> str:
    """The largest group that divides all rows, if that is the reason."""
    if any(isinstance(source, Computed) for source in plan.entries[refused].sources):
        return "leave --quantize out, or give the checkpoint in floats"
    rows = [plan.entries[name].declared.axes[-1].size for name in names]
    fitting = [size for size in (128, 64, 32, 16) if all(row % size == 0 for row in rows)]
    if recipe.name.startswith("int4-g") and fitting and recipe.along not in fitting:
        return f"give int4-g{fitting[0]}, or int8"
    return "give int8 or fp8, which have one scale for each row, or leave --quantize out"
