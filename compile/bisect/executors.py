"""Executors of programs, compiled for the target of a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.program.program import Executor, Program
from bringup.compile.program.trace_cached import EncodedProgram
from bringup.compile.targets.selection import Selection

if TYPE_CHECKING:
    import numpy as np

Lower = Callable[[Program], Executor]


def lowered(selection: Selection, weights: Mapping[str, np.ndarray], device: str | None) -> Lower:
    """A function that compiles a program over these weights for a target, and loads it on a device, or the default."""
    target = selection.target

    def lower(program: Program) -> Executor:
        functions = program.interface.functions
        code = {function.name: target.encode(function, program.exported[function.name]) for function in functions}
        coded = EncodedProgram(interface=program.interface, code=code, num_cached=0)
        with tempfile.TemporaryDirectory(prefix="bringup-") as scratch:
            folder = Path(scratch, "bundle")
            folder.mkdir()
            with selection.lower(coded, folder, Store(Path(scratch, "cache")), None) as finish:
                finish()
            return target.load(folder, program.interface, weights, device)

    return lower
