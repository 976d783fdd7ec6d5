"""The headers that a graph expects of a checkpoint: as published, from the rules alone; or under the graph's names."""

from __future__ import annotations

from bringup.adapters.algebra.expr import S, Source
from bringup.adapters.algebra.pattern import Unbound
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.problems import unbound
from bringup.adapters.planning.rules import Tied
from bringup.diagnostics import fail
from bringup.graphs.core.axes import Axis, shape_of, show, sizes_of
from bringup.graphs.core.signature import Signature
from bringup.spec import TensorInfo


def published(signature: Signature, adapter: Adapter) -> dict[str, TensorInfo]:
    """Headers of a checkpoint that the adapter accepts; a tied parameter is omitted.

    Raises BU118 if a rule does not determine the shape of a tensor that it reads, BU027 if its name has an unbound
    variable.
    """
    if adapter.trace:
        message = f"the adapter `{adapter.name}` is a function of a checkpoint's headers, and dummy weights have none"
        raise fail("BU118", message, help="give a checkpoint; only an adapter of rules determines the tensors of one")
    headers: dict[str, TensorInfo] = {}
    for declared in signature.values():
        for rule, bindings in adapter.rules_of(declared):
            tie = rule.expr if isinstance(rule.expr, Tied) else None
            expr = tie.others[-1] if tie and tie.when else rule.own_expr
            defaults = adapter.default_axes(declared.axes) if isinstance(expr, Source) else ()
            scope = Scope(sizes_of(declared.axes), defaults, Names({}), bindings)
            try:
                leaves = list(expr.leaves(bindings))
            except Unbound as error:
                raise unbound(rule, error) from None
            for source, name in leaves:
                axes = source.stored(scope, None)
                if not source.has_shape(axes):
                    raise fail(
                        "BU118",
                        f"the rule does not determine the shape of `{name}`: axes `{show(axes)}`",
                        help="write the axes of the source, and the sizes that the parameter's axes do not name",
                        parameter=declared.name,
                        where=rule.site,
                    )
                headers.setdefault(name, TensorInfo(name, source.dtype or declared.dtype, shape_of(axes)))
    return headers


def as_declared(signature: Signature) -> Adapter:
    """The adapter for a dict that has every parameter under its own name, with its axes and stored shape."""
    adapter = Adapter("as declared", by_name=True)
    for declared in signature.values():
        stored = S(declared.name, show(declared.axes))
        if declared.pack:
            name, n = declared.pack
            words = tuple(Axis("word", a.size // n) if a.name == name else a for a in declared.axes)
            units = " ".join(f"{name}:(word value)" if a.name == name else str(a) for a in declared.axes)
            stored = S(declared.name, show(words)).bits(declared.dtype, "value").mv(f"{show(words)} value -> {units}")
        adapter[declared.name] = stored
    return adapter
