"""A program becomes an executor, for whichever target a bundle has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bringup.compile.program.program import Executor, Program

if TYPE_CHECKING:
    import numpy as np

Lower = Callable[[Program], Executor]


def lowered(lowering: str, weights: Mapping[str, np.ndarray]) -> Lower:
    """How a lowering (`torch`, `iree-cpu`) makes an executor of a program over these weights."""

    def by_torch(program: Program) -> Executor:
        from bringup.compile.targets.torch_executor import TorchExecutor

        return TorchExecutor(program.exported, program.interface, weights)

    def by_iree(program: Program) -> Executor:
        from bringup.compile.targets import iree_mlir
        from bringup.compile.targets.iree_executor import IreeExecutor
        from bringup.compile.targets.lowering import compile_mlir

        return IreeExecutor(compile_mlir(iree_mlir.to_mlir(program), None), program.interface, weights)

    return by_torch if lowering == "torch" else by_iree
