# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
"""A traced stage without in-place updates, with its operations decomposed, for compilers of pure functions.

The operations are those of `ExportedProgram.run_decompositions`, in one pass over the traced graph. torch makes two
passes, the first to find the inputs that change, which the pass itself knows at its end (`functional_run.py`). In each
pass it registers a rule for every one of 500 composite operations. Here they are registered once in a process, and
exchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import fx
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import ExportedProgram
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from bringup.compile.program.functional_run import (
    functional_mode,
    functional_run,
    placeholders,
    updated_by_results,
)
from bringup.compile.program.lean_tracing import source_lines

Table = Mapping[Any, Callable[..., Any]]


class Decompositions:
    """The operations that are decomposed, from a table of torch: operations, and functions that compute them by others.

    As in `run_decompositions`, composite operations that are not in the table are unchanged.
    """

    def __init__(self, table: Table) -> None:
        composites, others = _split_decomp_table_to_cia_and_python_decomp(dict(table))
        self.table: Mapping[Any, Callable[..., Any]] = others
        rules = {op: op_implementations_dict[op] for op in composites if op in op_implementations_dict}
        with _override_composite_implicit_decomp(composites):
            self._kernels = {op: dict(op.py_kernels) for op in composites}
            self._rules = {op: op_implementations_dict[op] for op in composites}
        op_implementations_dict.update(rules)  # torch removes those that were registered before

    @contextmanager
    def composites(self) -> Generator[None]:
        """In the block, the composite operations of the table are decomposed, and no others."""
        kernels = self._exchanged(self._kernels)
        rules = {op: op_implementations_dict.get(op) for op in self._rules}
        op_implementations_dict.update(self._rules)
        try:
            yield
        finally:
            self._exchanged(kernels)
            for op, rule in rules.items():
                if rule is None:
                    del op_implementations_dict[op]
                else:
                    op_implementations_dict[op] = rule

    def _exchanged(self, kernels: Mapping[Any, dict[Any, Any]]) -> dict[Any, dict[Any, Any]]:
        """Replaces the Python kernels of operations; returns those before."""
        before = {op: dict(op.py_kernels) for op in kernels}
        for op, own in kernels.items():
            op.py_kernels.clear()
            op.py_kernels.update(own)
            op._dispatch_cache.clear()
        return before


@dataclass(frozen=True, slots=True, kw_only=True)
class Functional:
    """A graph without in-place updates, with the attributes of an `ExportedProgram` that readers of graphs need.

    `updated`: the indices of the user's inputs whose new values are the first results.
    """

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    constants: Mapping[str, Any]
    state_dict: Mapping[str, Any]
    updated: tuple[int, ...]

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph


def functional(exported: ExportedProgram, decompositions: Decompositions, *, lines: bool = False) -> Functional:
    """The same function without in-place updates: the new values of changed inputs are its first results, in order.

    In a program after `run_decompositions` they are first already. With `lines`, nodes have the source lines of the
    nodes that they come from.
    """
    signature: Any = exported.graph_signature
    given = placeholders(exported)
    values = [node.meta["val"] for node in given]
    places: list[int] = []

    def run(*tensors: Any) -> list[Any]:
        results, changed, _ = functional_run(exported, tensors)
        places.extend(changed)
        return [*changed.values(), *results]

    with (
        source_lines(recorded=lines),
        preserve_node_meta(lines),
        functional_mode(values),
        decompositions.composites(),
    ):
        module = make_fx(run, decomposition_table=decompositions.table)(*values)
    graph = module.graph
    graph.eliminate_dead_code()
    results: Any = graph.output_node().args[0]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node, old in zip(inputs, given, strict=True):
        node._rename(old.name)
    names = dict(zip((node.name for node in given), (node.name for node in inputs), strict=True))
    updated = [given[place].name for place in places]
    updated += updated_by_results(exported)
    return Functional(
        graph_module=module,
        graph_signature=ExportGraphSignature(
            input_specs=[_renamed(spec, names) for spec in signature.input_specs],
            output_specs=[OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results],
        ),
        constants=exported.constants,
        state_dict=exported.state_dict,
        updated=tuple(signature.user_inputs.index(name) for name in updated),
    )


def _renamed(spec: InputSpec, names: Mapping[str, str]) -> InputSpec:
    return replace(spec, arg=replace(spec.arg, name=names[spec.arg.name]))
