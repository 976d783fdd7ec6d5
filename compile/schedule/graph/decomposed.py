# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Decomposes operators of torch into those that kernels support, with torch's own decompositions.

Kernels support core ATen (https://docs.pytorch.org/docs/stable/torch.compiler_ir.html), except a few operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from bringup.compile.schedule.graph.op_graph import Argument, Buffer, DType, View
from bringup.compile.schedule.graph.roles import is_known

# Core or element-wise operators that are decomposed too.
_WRITTEN_OUT = (
    *("native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training", "_softmax", "_log_softmax"),
    *("elu", "leaky_relu", "hardtanh", "softplus", "linalg_vector_norm", "embedding", "addmm", "addmv", "mv", "repeat"),
    *("index_fill", "rsub", "slice_scatter", "select_scatter", "isinf", "native_batch_norm"),
)
_OF_OURS = ("layer_norm", "rms_norm")  # names that torch has too
# Operators that torch does not tag as core, because it composes them, and that kernels support.
COMPOSED = frozenset(
    {
        *("aten.arange.default", "aten.arange.start", "aten.softmax.int", "aten.to.dtype", "aten.view.dtype"),
        *("aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.as_strided_scatter.default"),
        *("aten.kthvalue.default", "aten.cummax.default", "aten.cummin.default", "aten.cumprod.default"),
        *("aten.prod.default", "aten.max.default", "aten.min.default", "aten.sort.stable", "aten.var_mean.correction"),
        *("aten.scatter.src", "aten.scatter.value", "aten.bmm.default", "aten.dot.default"),
    }
)


def named(target: Any, arguments: Sequence[Argument]) -> tuple[str, tuple[str, ...], tuple[Argument, ...]]:
    """The name of an operation, the names of its arguments, and the arguments; equivalent operators become ours."""
    name, given = str(target), tuple(arguments)
    if name == "aten.linear.default":
        return "bringup.linear.default", ("x", "weight", "bias"), given
    if name == "aten.gelu.default":
        return f"bringup.gelu{'_tanh' if given[1] == 'tanh' else ''}.default", ("x",), given[:1]
    return name, tuple(info.name for info in target._schema.arguments), given


@cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions, by operator."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    more = get_decompositions([getattr(torch.ops.aten, name) for name in _WRITTEN_OUT])
    return dict(core_aten_decompositions()) | dict(more)


def is_whole(target: Any, arguments: Sequence[Argument]) -> bool:
    """Whether an operator is not decomposed: bringup's own, those that kernels support, and core except those above."""
    name = str(target)
    if target.namespace != "aten":
        return True
    short = name.split(".")[1]
    if short == "softmax":
        return _is_last(arguments)
    if name in COMPOSED or (is_known(short) and short not in _OF_OURS):
        return True
    return target not in decompositions() and torch.Tag.core in target.tags


def _is_last(arguments: Sequence[Argument]) -> bool:
    """Whether the axis of a softmax is the last one."""
    x, axis = arguments[:2]
    return isinstance(x, View) and axis in (-1, len(x.shape) - 1)


def written_out(target: Any, arguments: Sequence[Argument], buffers: Mapping[str, Buffer]) -> GraphModule | None:
    """A call of an operator as a graph of other operators, whose inputs are its tensors in order; None if there is
    none.

    All sizes are fixed.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode(), torch.no_grad():
        call = _Call(target, arguments, buffers)
        try:
            module = make_fx(call, decomposition_table=dict(decompositions()))(*call.tensors)
        except RuntimeError:  # torch's fake tensors raise it for an operator whose result sizes depend on values
            return None
    calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
    if target in calls or any(getattr(each, "namespace", "aten") != "aten" for each in calls):
        return None
    return module


def results_of(target: Any, arguments: Sequence[Argument], buffers: Mapping[str, Buffer]) -> Any:
    """The results of an operator, as fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        call = _Call(target, arguments, buffers)
        return call(*call.tensors)


class _Call:
    """A call of an operator with tensors of the arguments' shapes; `tensors` are such, without values."""

    def __init__(self, target: Any, arguments: Sequence[Argument], buffers: Mapping[str, Buffer]) -> None:
        self._target, self._buffers = target, buffers
        self.tensors: list[torch.Tensor] = []
        self._pairs = list(zip(target._schema.arguments, map(self._value, arguments), strict=True))

    def __call__(self, *given: torch.Tensor) -> Any:
        def put(leaf: object) -> object:
            return given[leaf.at] if isinstance(leaf, _Place) else leaf

        def filled(value: Any) -> Any:
            return tree_map(put, value)

        return self._target(
            *(filled(value) for info, value in self._pairs if not info.kwarg_only),
            **{info.name: filled(value) for info, value in self._pairs if info.kwarg_only and value is not None},
        )

    def _value(self, argument: Argument) -> Any:
        match argument:
            case View():
                dtype = getattr(torch, self._buffers[argument.buffer].dtype)
                self.tensors.append(torch.empty_strided(argument.shape, _spread(argument), dtype=dtype))
                return _Place(len(self.tensors) - 1)
            case DType():
                return getattr(torch, argument.name)
            case tuple():
                return [self._value(item) for item in argument]
            case _:
                return argument


class _Place:
    """The index of an argument among the tensors."""

    def __init__(self, at: int) -> None:
        self.at = at


def _spread(view: View) -> tuple[int, ...]:
    """The strides of a view; those of a dense tensor if an axis repeats elements."""
    if 0 in view.strides:
        return tuple(torch.empty(view.shape, device="meta").stride())
    return view.strides
