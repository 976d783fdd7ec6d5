# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""Shapes and dtypes that a function gives, worked out on torch's meta device and not with fake tensors.

Fake tensors take several times as long for each operation, most of all with sizes that are not fixed (the number of
cache blocks). Such a size is given the least and the largest value that it can have; where both give the same results,
these do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bringup.diagnostics import BringupError


class _Sizes(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


_Results = tuple[tuple[_Sizes, ...], bool] | None  # of a function: its tensors, and whether they come in a tuple


def results_like(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What `function` gives of these arguments: tensors without content, on their device.

    It is called with the arguments themselves, where its results have a size that is not fixed, or where it does
    something that the meta device refuses.
    """
    import torch

    try:
        found = [
            _results(function, arguments, largest) for largest in ((False, True) if _is_open(arguments) else (True,))
        ]
    except (RuntimeError, TypeError, ValueError, OverflowError, BringupError):  # which the function itself raises again
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

    # The dispatcher, which calls here, has turned modes of functions off: `torch.device` is one.
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
    """Whether a size is not fixed."""
    return any(type(size) is not int for value in arguments for size in getattr(value, "shape", ()))


def _fixed(size: Any, largest: bool) -> int:
    """Raises OverflowError or TypeError for one that has no largest value."""
    if type(size) is int:
        return size
    expression, ranges = size.node.expr, size.node.shape_env.var_to_range
    return int(expression.subs({each: ranges[each].upper if largest else 1 for each in expression.free_symbols}))
