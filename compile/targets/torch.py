"""The target `torch`: the exported functions, run by torch. The reference that other targets are compared with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bringup.compile.targets.target import Options, Target
from bringup.graphs.core.options import ACTIVATIONS
from bringup.graphs.ops.latent_attention import cheaper_form
from bringup.system.atomic import write_file

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from bringup.compile.program.program import Executor, Function, Interface
    from bringup.compile.program.trace_cached import EncodedProgram
    from bringup.compile.targets.module_store import ModuleStore

PROGRAMS = "programs"


class Torch(Target):
    """A bundle has one `.pt2` file for each traced function."""

    name = "torch"
    summary = "torch.export, run by torch on the CPU: the reference for the other targets"
    requires = runs_with = ("torch",)
    supports_packed = True
    activations = ACTIVATIONS
    supports_loras = True
    opaque = frozenset({"quant_linear", "quant_experts", "fp8_linear", "fp8_experts"})
    implementations = MappingProxyType({"latent_attention": cheaper_form})

    def encode(self, function: Function, exported: ExportedProgram) -> bytes:
        from bringup.compile.targets.torch_executor import encode

        return encode(function, exported)

    @contextmanager
    def lower(
        self, program: EncodedProgram, folder: Path, options: Options, store: ModuleStore, dump_dir: Path | None
    ) -> Generator[Callable[[], str]]:
        def finish() -> str:
            (folder / PROGRAMS).mkdir()
            for name, code in program.code.items():
                write_file(folder / PROGRAMS / f"{name}.pt2", code)
            return f"{len(program.code)} exported functions"

        yield finish

    def load(
        self, folder: Path, interface: Interface, weights: Mapping[str, np.ndarray], device: str | None
    ) -> Executor:
        from bringup.compile.targets.torch_executor import TorchExecutor, load_functions

        return TorchExecutor(load_functions(folder / PROGRAMS, interface), interface, weights)


TORCH = Torch()
