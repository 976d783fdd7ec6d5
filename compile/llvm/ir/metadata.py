# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Nodes of metadata that llvmlite does not write itself."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


class Distinct(ir.MDValue):
    """A node of metadata that is equal to no other: of a loop, whose first operand is itself, or without operands."""

    def __init__(self, module: ir.Module, operands: tuple[Any, ...], *, is_loop: bool = False) -> None:
        super().__init__(module, operands, name=str(len(module.metadata)))
        self._own = (self,) if is_loop else ()

    def descr(self, buf: list[str]) -> None:
        buf += (f"distinct !{{ {', '.join(each.get_reference() for each in (*self._own, *self.operands))} }}", "\n")

    def __eq__(self, other: object) -> bool:
        """llvmlite writes equal nodes once."""
        return self is other

    def __hash__(self) -> int:
        return id(self)
