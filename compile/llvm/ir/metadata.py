# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Metadata nodes that llvmlite has no class for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


class Distinct(ir.MDValue):
    """A distinct metadata node: either of a loop, whose first operand is itself, or without operands."""

    def __init__(self, module: ir.Module, operands: tuple[Any, ...], *, is_loop: bool = False) -> None:
        super().__init__(module, operands, name=str(len(module.metadata)))
        self._own = (self,) if is_loop else ()

    def descr(self, buf: list[str]) -> None:
        buf += (f"distinct !{{ {', '.join(each.get_reference() for each in (*self._own, *self.operands))} }}", "\n")

    def __eq__(self, other: object) -> bool:
        """Identity, because llvmlite merges equal nodes."""
        return self is other

    def __hash__(self) -> int:
        return id(self)
