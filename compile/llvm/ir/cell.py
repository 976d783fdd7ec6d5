# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Cell: a local variable of the function that is emitted."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

Value = Any  # an ir.Value; llvmlite has no type annotations


class Cell:
    """A variable in stack memory, which LLVM promotes to registers."""

    def __init__(self, b: ir.IRBuilder, kind: Any, initial: Value) -> None:
        with b.goto_entry_block():
            self._place = b.alloca(kind)
        self._b, self._kind = b, kind
        self.set(initial)

    def get(self) -> Value:
        return self._b.load(self._place, typ=self._kind)

    def set(self, value: Value) -> None:
        self._b.store(value, self._place)
