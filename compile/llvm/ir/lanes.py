# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Types and constants of scalars and vectors: a constant of a vector has the same number in each lane."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from bringup.compile.llvm.ir.dtypes import F32


def vector(lanes: int, element: Any = F32) -> Any:
    """The type of a vector of `lanes` elements; the element's type if `lanes` is 1."""
    return ir.VectorType(element, lanes) if lanes > 1 else element


def like(value: Any, element: Any) -> Any:
    """The type of elements `element` with as many lanes as a value."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def constant(kind: Any, number: float) -> Any:
    """A number as a constant of a type; of a vector, in each lane."""
    return kind([kind.element(number)] * kind.count) if isinstance(kind, ir.VectorType) else kind(number)
