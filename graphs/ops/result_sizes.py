# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""The shapes and dtypes of a function's results, computed on torch's meta device and not with fake tensors.

Fake tensors take several times as long for each operation, most of all with dynamic sizes (the number of cache
blocks). A dynamic size is replaced by its least and by its largest possible value; if the results are the same, they
do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bringup.diagnostics import BringupError


class _Sizes(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


_Results = tuple[tuple[_Sizes, ...], bool] | None  # the tensors of a result, and whether it is a tuple


def results_like(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The results of `function` for these arguments, as tensors without data on the arguments' device.

    The function is called with the arguments themselves if its results have a dynamic size, or if it uses an operation
    that the meta device does not support.
    """
    import torch

    try:
        found = [
            _results(function, arguments, largest) for largest in ((False, True) if _is_open(arguments) else (True,))
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


def _results(function: Callable[..., Any], arguments: Sequence[Any], largest: bool) -> _Results:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    # The dispatcher, which calls this function, disables function modes: `torch.device` is one.
    with unset_fake_temporarily(), torch._C._EnableTorchFunction(), torch.device("meta"):
        out = function(*(_without_content(value, largest) for value in arguments))
    if out is None:
        return None
    several = isinstance(out, tuple)
    tensors = out if several else (out,)
    return tuple(_Sizes(tuple(each.shape), each.stride(), each.dtype) for each in tensors), several


def _without_content(value: Any, largest: bool) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = ([_fixed(size, largest) for size in sizes] for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype)


def _is_open(arguments: Sequence[Any]) -> bool:
    """Whether a size is dynamic."""
    return any(type(size) is not int for value in arguments for size in getattr(value, "shape", ()))


def _fixed(size: Any, largest: bool) -> int:
    """The least or the largest value of a size. Raises OverflowError or TypeError if it has no largest value."""
    if type(size) is int:
        return size
    expression, ranges = size.node.expr, size.node.shape_env.var_to_range
    return int(expression.subs({each: ranges[each].upper if largest else 1 for each in expression.free_symbols}))
