# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""The strides of the results of view operators, by torch's own rules."""

from __future__ import annotations

from typing import Any

import torch

from bringup.compile.schedule.graph.op_graph import Argument, DType, View
from bringup.spec import Shape


def viewed(target: Any, view: View, dtype: str, arguments: list[Argument]) -> list[View] | View | bool | None:
    """The result of a view operator on a view; None if strides cannot express it.

    True if the result has another dtype, False if it is a copy.
    """
    base = _tensor(view, dtype)
    out = _run(target, base, arguments)
    if out is None:
        return None
    listed = out if isinstance(out, list | tuple) else [out]
    if listed[0].dtype != base.dtype:
        return True
    if any(each.untyped_storage()._cdata != base.untyped_storage()._cdata for each in listed):
        return False
    views = [View(view.buffer, tuple(t.shape), tuple(t.stride()), t.storage_offset()) for t in listed]
    return views if isinstance(out, list | tuple) else views[0]


def expanded(view: View, shape: Shape) -> View:
    """A view that repeats its elements to fill a shape, like torch's `expand`."""
    lead = len(shape) - len(view.shape)
    strides = (0,) * lead + tuple(
        stride if own == size else 0 for own, size, stride in zip(view.shape, shape[lead:], view.strides, strict=True)
    )
    return View(view.buffer, shape, strides, view.offset)


def _tensor(view: View, dtype: str) -> torch.Tensor:
    """A tensor of these strides, without memory."""
    extent = 1 + view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    base = torch.empty(max(extent, 0), dtype=getattr(torch, dtype), device="meta")
    return base.as_strided(view.shape, view.strides, view.offset)


def _run(target: Any, base: torch.Tensor, arguments: list[Argument]) -> Any:
    """The result of a view operator; None if it rejects the strides."""
    settings = [list(value) if isinstance(value, tuple) else value for value in arguments[1:]]
    settings = [getattr(torch, value.name) if isinstance(value, DType) else value for value in settings]
    positional = [info for info in target._schema.arguments if not info.kwarg_only]
    named = {
        info.name: value for info, value in zip(target._schema.arguments[1:], settings, strict=True) if info.kwarg_only
    }
    try:
        return target(base, *settings[: len(positional) - 1], **named)
    except RuntimeError:
        return None
