"""A program becomes an executor, for whichever target a bundle has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bringup.compile.program import Executor, Program

if TYPE_CHECKING:
    import numpy as np

Lower = Callable[[Program], Executor]


def lowered(lowering: str, weights: Mapping[str, np.ndarray]) -> Lower:
    """How a lowering (`torch`, `iree-cpu`) makes an executor of a program over these weights."""

    def by_torch(program: Program) -> Executor:
        from bringup.compile.run.torch import TorchExecutor

        return TorchExecutor(program.exported, program.interface, weights)

    def by_iree(program: Program) -> Executor:
        from bringup.compile.lower import mlir
        from bringup.compile.lowering import compile_mlir
        from bringup.compile.run.iree import IreeExecutor

        return IreeExecutor(compile_mlir(mlir.to_mlir(program), None), program.interface, weights)

    return by_torch if lowering == "torch" else by_iree
