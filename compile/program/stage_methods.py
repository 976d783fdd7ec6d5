# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The functions of a model's parts: each gets its module or layer, its values, and the step as last argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bringup.compile.program.assemble import Part
from bringup.graphs.layers.lora import choosing, one_row_each

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step

    Method = Callable[..., Tensor | tuple[Tensor, ...]]


def _prologue(module: Any, *values: Tensor | Step) -> tuple[Tensor, ...]:
    *inputs, step = values
    return module.prologue(step, *inputs)


def _layer(layer: Any, *values: Tensor | Step) -> Tensor | tuple[Tensor, ...]:
    return layer(*values)


def with_loras(method: Method) -> Method:
    """The method with one more value, before the step: the slot of each sequence's LoRA, int64 [B]."""

    def run(owner: Any, *values: Any) -> Tensor | tuple[Tensor, ...]:
        *given, slots_B, step = values
        with choosing(slots_B, step):
            return method(owner, *given, step)

    return run


def _last_rows(module: Any, *values: Any) -> Tensor:
    """Logits [B, V] of each sequence's last token; for padding sequences, of an earlier token."""
    *carried, step = values
    rows = step.starts[1:] - 1
    with one_row_each():
        return module.epilogue(*(value.index_select(0, rows) for value in carried))


def _all_rows(module: Any, *values: Any) -> Tensor:
    return module.epilogue(*values[:-1])


def _final(module: Any, *values: Any) -> Tensor:
    return module.final(*values[:-1])


def _hidden(module: Any, *values: Any) -> Tensor:
    return module.hidden_state(*values[:-1])


METHODS: dict[Part, Method] = {
    "prologue": _prologue,
    "layer": _layer,
    "hidden": _hidden,
    "final": _final,
    "last_rows": _last_rows,
    "all_rows": _all_rows,
}
