# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""The shapes and dtypes of a function's results, computed on torch's meta device and not with fake tensors.

Fake tensors take several times as long for each operation, most of all with dynamic sizes (the number of cache
blocks). A dynamic size is replaced by its least and by its largest possible value; if the results are the same, they
do not depend on it.

A stage is run and then traced, its layers repeat the same operations, and a reference takes tens of them: an op's
results are computed once for each combination of settings, sizes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from bringup.diagnostics import BringupError
from bringup.graphs.ops.lowering import current

_MOST = 4096  # results that are kept of an op


class _Sizes(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


_Results = tuple[tuple[_Sizes, ...], bool] | None  # the tensors of a result, and whether it is a tuple
Known = dict[Hashable, _Results]
"""Results by the arguments of a function."""


def results_like(function: Callable[..., Any], arguments: Sequence[Any], known: Known | None = None) -> Any:
    """The results of `function` for these arguments, as tensors without data on the arguments' device.

    The function is called with the arguments themselves if its results have a dynamic size, or if it uses an operation
    that the meta device does not support. `known`: the results of earlier calls, to which new ones are added, of a
    function whose results depend on nothing but its arguments and on how ops are lowered. None: nothing is kept.
    """
    import torch

    try:
        found = [
            _results(function, arguments, largest, known)
            for largest in ((False, True) if _is_open(arguments) else (True,))
        ]
    except (RuntimeError, TypeError, ValueError, OverflowError, BringupError):  # the call below raises it again
        return function(*arguments)
    if found[0] is None:
        return None
    if found[0] != found[-1]:
        return function(*arguments)
    device = next((value.device for value in arguments if isinstance(value, torch.Tensor)), None)
    sizes, several = found[0]
    tensors = [torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device=device) for each in sizes]
    return tuple(tensors) if several else tensors[0]


def _results(function: Callable[..., Any], arguments: Sequence[Any], largest: bool, known: Known | None) -> _Results:
    given = [_without_content(value, largest) for value in arguments]
    if known is None:
        return _computed(function, given)
    lowering = current()
    lowered = frozenset(lowering.opaque), frozenset(lowering.implementations.items())
    key = *map(_described, given), lowered
    if key not in known:
        if len(known) == _MOST:
            known.clear()
        known[key] = _computed(function, given)
    return known[key]


def _computed(function: Callable[..., Any], given: Sequence[Any]) -> _Results:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    # The dispatcher, which calls this function, disables function modes: `torch.device` is one.
    with unset_fake_temporarily(), torch._C._EnableTorchFunction(), torch.device("meta"):
        arguments = [
            torch.empty_strided(each.shape, each.strides, dtype=each.dtype) if isinstance(each, _Sizes) else each
            for each in given
        ]
        out = function(*arguments)
    if out is None:
        return None
    several = isinstance(out, tuple)
    tensors = out if several else (out,)
    return tuple(_Sizes(tuple(each.shape), each.stride(), each.dtype) for each in tensors), several


def _without_content(value: Any, largest: bool) -> Any:
    """The sizes of a tensor; other values are unchanged."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = (tuple(_fixed(size, largest) for size in sizes) for sizes in (value.shape, value.stride()))
    return _Sizes(shape, strides, value.dtype)


def _described(value: Any) -> Hashable:
    """A key that differs for different values: Python's 1, 1.0 and True are equal."""
    return type(value), tuple(value) if isinstance(value, list) else value


def _is_open(arguments: Sequence[Any]) -> bool:
    """Whether a size is dynamic."""
    return any(type(size) is not int for value in arguments for size in getattr(value, "shape", ()))


def _fixed(size: Any, largest: bool) -> int:
    """The least or the largest value of a size. Raises OverflowError or TypeError if it has no largest value."""
    if type(size) is int:
        return size
    expression, ranges = size.node.expr, size.node.shape_env.var_to_range
    return int(expression.subs({each: ranges[each].upper if largest else 1 for each in expression.free_symbols}))
