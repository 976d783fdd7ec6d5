# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A graph as a torch module: same class bodies, same names, tensors on the meta device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from bringup.graphs.core.module import Const, Module, Param, State

if TYPE_CHECKING:
    from torch import nn


def to_torch(module: Module, dtype: str, *, positions: int, slots: int) -> nn.Module:
    """The `nn.Module` whose forward is the graph's, with its exact parameter names, so that torch.export sees an
    ordinary module.

    Params and States are on the meta device, the latter as buffers with `slots` rows; Consts are real tables for
    `positions` positions. `dtype` is what leaves without one of their own have.
    """
    import torch
    from torch import nn

    kind: Any = _torch_class(type(module))
    converted: Any = kind.__new__(kind)
    nn.Module.__init__(converted)

    def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def convert(part: Module) -> nn.Module:
        return to_torch(part, dtype, positions=positions, slots=slots)

    for name, value in vars(module).items():
        match value:
            case Param():
                converted.register_parameter(name, nn.Parameter(empty(*value.stored(dtype)), requires_grad=False))
            case State():
                converted.register_buffer(
                    name, empty(value.sized(slots), value.declared_dtype or dtype), persistent=False
                )
            case Const():
                converted.register_buffer(name, torch.from_numpy(value.table(positions)), persistent=False)
            case Module():
                setattr(converted, name, convert(value))
            case [Module(), *_]:
                setattr(converted, name, nn.ModuleList(map(convert, value)))
            case _:
                setattr(converted, name, value)
    return converted


@cache
def _torch_class(kind: type[Module]) -> type[Any]:
    """The graph's class with torch's behind it: attributes and calls are torch's, forward is the graph's."""
    from torch import nn

    return type(kind.__name__, (kind, nn.Module), {})
