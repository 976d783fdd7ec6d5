# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false
"""A process that compiles kernels with Triton. It reads a line of JSON for each kernel, and writes a line for it.

`python -m bringup.compile.kernels.worker` reads lines `[capability, kernel]`. An error ends the process, with a
traceback on standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from bringup.compile.kernels import source
from bringup.compile.kernels.call import Constant, Kernel
from bringup.compile.kernels.compiled import Compiled, compiled_to_json, kernel_from_json

SCRATCH_TYPES = ("*i8", "*i8")  # the types of the two parameters that Triton adds to every kernel
EARLY = "EARLY"  # the parameter of every kernel that states whether launches start early on its architecture
WAVE64 = ("gfx9",)  # AMD's data centre architectures have 64 threads in a wavefront, the others 32


def compile_kernel(kernel: Kernel, capability: str) -> Compiled:
    """Compiles a kernel for an architecture: `sm_90`, `gfx942`, ….

    Raises ValueError for an unknown architecture or the wrong number of types. Triton raises errors of many types.
    """
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource

    function = _function(kernel.stem)
    constants = {name: _constant(value) for name, value in kernel.constants} | {EARLY: starts_early(capability)}
    names = [name for name in function.arg_names if name not in constants]
    if len(names) != len(kernel.types):
        raise ValueError(f"`{kernel.stem}` has the parameters {', '.join(names)}: {len(kernel.types)} types are given")
    signature = dict(zip(names, kernel.types, strict=True))
    positions = [function.arg_names.index(names[index]) for index in kernel.aligned]
    source_of = GluonASTSource if function.is_gluon() else ASTSource
    compiled = triton_compile(
        source_of(
            function,
            {name: signature.get(name, "constexpr") for name in function.arg_names},
            {(function.arg_names.index(name),): value for name, value in constants.items()},
            {(position,): [["tt.divisibility", 16]] for position in positions},
        ),
        target=target_of(capability),
        # Whether products and sums are fused is decided by the kernel's author, not by Triton's version.
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
    """Whether a launch may start while the previous one runs, and waits for it in the kernel: sm_90 and later.

    See source/launches.py.
    """
    return capability.startswith("sm_") and int(capability.removeprefix("sm_")) >= 90


def _constant(value: Constant) -> Any:
    """The value of a constant; a text that defines a function (`def …`) becomes the Triton function."""
    from bringup.compile.kernels.source.generated import function_of

    return function_of(value) if isinstance(value, str) and value.startswith("def ") else value


def target_of(capability: str) -> Any:
    """Triton's target for an architecture. Raises ValueError for a name other than `sm_…` or `gfx…`."""
    from triton.backends.compiler import GPUTarget

    if capability.startswith("sm_"):
        return GPUTarget("cuda", int(capability.removeprefix("sm_")), 32)
    if capability.startswith("gfx"):
        return GPUTarget("hip", capability, 64 if capability.startswith(WAVE64) else 32)
    raise ValueError(f"`{capability}` is no architecture")


def _function(stem: str) -> Any:
    module = import_module(f"{source.__name__}.{stem}")
    for name, loaded in list(sys.modules.items()):
        if name.startswith((f"{source.__name__}.", "triton.")):
            _name_files(loaded)
    return getattr(module, stem.rpartition(".")[2])


def _name_files(module: ModuleType) -> None:
    """Replaces paths in line tables by module names: a kernel's bytes do not depend on where it is installed."""
    from triton.runtime.jit import JITFunction

    for value in list(vars(module).values()):
        if isinstance(value, JITFunction):
            value.file_name = value.fn.__module__.replace(".", "/") + ".py"


def keep_no_cache() -> None:
    """Replaces Triton's own cache, from which this process takes nothing: aot.py caches what it compiles.

    The key of that cache is a digest of all of Triton, 0.2 s, and each of a kernel's seven files takes four calls of
    the file system. Here a kernel's files replace those of the kernel before; Triton reads them before it returns.
    """
    from triton import knobs
    from triton.runtime import cache

    class Files(cache.CacheManager):
        def get_file(self, filename: str) -> str | None:
            return None

        def get_group(self, filename: str) -> dict[str, str] | None:
            return None

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = Path(knobs.cache.dir, filename)
            path.unlink(missing_ok=True)  # ext4 writes a file that is truncated to disk at once, which takes 6 ms
            if isinstance(data, bytes):
                path.write_bytes(data)
            else:
                path.write_text(str(data))
            return str(path)

        def put_group(self, filename: str, group: dict[str, str]) -> None:
            pass

    knobs.cache.manager_class = Files
    cache.triton_key = lambda: ""


def end_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes an error to standard error as its last lines: Triton's extension modules would write more as they end."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Compiles the kernels on standard input, one for each line.

    With PYTHONUNBUFFERED=1, `sys.stdout` loses the rest of a line if this process is stopped while it writes the line.
    """
    sys.excepthook = end_process
    keep_no_cache()
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as out:
        for line in sys.stdin:
            capability, kernel = json.loads(line)
            compiled = compile_kernel(kernel_from_json(kernel), capability)
            print(json.dumps(compiled_to_json(compiled)), file=out, flush=True)


if __name__ == "__main__":
    main()
