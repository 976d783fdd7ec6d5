# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A graph as a torch module: same class bodies, same names, tensors on the meta device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from bringup.graphs.core.module import Const, Module, Param, State, Windowed
from bringup.graphs.core.step import CacheSizes

if TYPE_CHECKING:
    from torch import nn


def to_torch(module: Module, dtype: str, sizes: CacheSizes) -> nn.Module:
    """The `nn.Module` whose forward is the graph's, with its exact parameter names, so that torch.export sees an
    ordinary module.

    Params and States are on the meta device, the latter as buffers; Consts are real tables for as many positions as the
    context of `sizes`. `dtype` is that of leaves that declare none.
    """
    import torch
    from torch import nn

    kind: Any = _torch_class(type(module))
    converted: Any = kind.__new__(kind)
    nn.Module.__init__(converted)

    def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def convert(part: Module) -> nn.Module:
        return to_torch(part, dtype, sizes)

    for name, value in vars(module).items():
        match value:
            case Param():
                converted.register_parameter(name, nn.Parameter(empty(*value.stored(dtype)), requires_grad=False))
            case State():
                converted.register_buffer(
                    name, empty(value.sized(sizes), value.declared_dtype or dtype), persistent=False
                )
            case Const():
                converted.register_buffer(name, torch.from_numpy(value.table(sizes.context)), persistent=False)
            case Module():
                setattr(converted, name, convert(value))
            case [Module(), *_]:
                setattr(converted, name, nn.ModuleList(map(convert, value)))
            case _:
                setattr(converted, name, value)
    if isinstance(module, Windowed):
        converted.ring = sizes.ring(module.window)
    return converted


@cache
def _torch_class(kind: type[Module]) -> type[Any]:
    """A class derived from the graph's and torch's: attributes and calls are torch's, forward is the graph's."""
    from torch import nn

    return type(kind.__name__, (kind, nn.Module), {})
