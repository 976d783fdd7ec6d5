# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false
"""A process that compiles kernels by Triton: a line of JSON for each in, a line for each out.

`python -m bringup.compile.kernels.worker` reads `[capability, kernel]`. An error ends the process: its traceback is on
standard error.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from bringup.compile.kernels import source
from bringup.compile.kernels.call import Constant, Kernel
from bringup.compile.kernels.compiled import Compiled, compiled_to_json, kernel_from_json

SCRATCH_TYPES = ("*i8", "*i8")  # of the two parameters that Triton adds to every kernel
EARLY = "EARLY"  # the parameter that every kernel has for what its architecture does
WAVE64 = ("gfx9",)  # AMD's data-centre architectures have 64 threads in a wavefront, its others 32


def compile_kernel(kernel: Kernel, capability: str) -> Compiled:
    """Compiles for `sm_90`, `gfx942`, … Triton raises errors of many types."""
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    function = _function(kernel.stem)
    constants = {name: _constant(value) for name, value in kernel.constants} | {EARLY: starts_early(capability)}
    names = [name for name in function.arg_names if name not in constants]
    if len(names) != len(kernel.types):
        raise ValueError(f"`{kernel.stem}` has the parameters {', '.join(names)}: {len(kernel.types)} types are given")
    signature = dict(zip(names, kernel.types, strict=True))
    positions = [function.arg_names.index(names[index]) for index in kernel.aligned]
    compiled = triton_compile(
        ASTSource(
            function,
            {name: signature.get(name, "constexpr") for name in function.arg_names},
            {(function.arg_names.index(name),): value for name, value in constants.items()},
            {(position,): [["tt.divisibility", 16]] for position in positions},
        ),
        target=target_of(capability),
        # Fusion of products and sums is a choice of the kernel's author, not of Triton's version.
        options={"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "enable_fp_fusion": False},
    )
    facts = compiled.metadata
    ours = "amdgcn" if capability.startswith("gfx") else "ptx"
    if facts.profile_scratch_size:
        raise ValueError(f"`{kernel.stem}` was compiled with a profiler")
    return Compiled(
        name=facts.name,
        capability=capability,
        binary=bytes(compiled.asm["hsaco" if ours == "amdgcn" else "cubin"]),
        assembly=str(compiled.asm[ours]),
        ttgir=str(compiled.asm["ttgir"]),
        types=(*kernel.types, *SCRATCH_TYPES),
        num_warps=int(facts.num_warps),
        warp_size=int(facts.target.warp_size),
        shared=int(facts.shared),
        global_scratch_size=int(facts.global_scratch_size or 0),
        global_scratch_align=int(facts.global_scratch_align or 1),
    )


def starts_early(capability: str) -> bool:
    """Whether a launch may start while the one before it runs, and waits for it; see source/launches.py."""
    return capability.startswith("sm_") and int(capability.removeprefix("sm_")) >= 90


def _constant(value: Constant) -> Any:
    """A function where a text defines one (`def …`)."""
    from bringup.compile.kernels.source.generated import function_of

    return function_of(value) if isinstance(value, str) and value.startswith("def ") else value


def target_of(capability: str) -> Any:
    """Triton's target. Raises ValueError for another name than `sm_…` or `gfx…`."""
    from triton.backends.compiler import GPUTarget

    if capability.startswith("sm_"):
        return GPUTarget("cuda", int(capability.removeprefix("sm_")), 32)
    if capability.startswith("gfx"):
        return GPUTarget("hip", capability, 64 if capability.startswith(WAVE64) else 32)
    raise ValueError(f"`{capability}` is no architecture")


def _function(stem: str) -> Any:
    module = import_module(f"{source.__name__}.{stem}")
    for name, loaded in list(sys.modules.items()):
        if name.startswith((f"{source.__name__}.", "triton.language.")):
            _name_files(loaded)
    return getattr(module, stem.rpartition(".")[2])


def _name_files(module: ModuleType) -> None:
    """Line tables name a file by its module, so that the same kernel gives the same bytes wherever it is installed."""
    from triton.runtime.jit import JITFunction

    for value in list(vars(module).values()):
        if isinstance(value, JITFunction):
            value.file_name = value.fn.__module__.replace(".", "/") + ".py"


def main() -> None:
    for line in sys.stdin:
        capability, kernel = json.loads(line)
        compiled = compile_kernel(kernel_from_json(kernel), capability)
        print(json.dumps(compiled_to_json(compiled)), flush=True)


if __name__ == "__main__":
    main()
