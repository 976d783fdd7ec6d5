"""A program becomes what a target runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.program.trace_cached import EncodedProgram, StageCodec
from bringup.diagnostics import fail
from bringup.system.atomic import write_file
from bringup.system.os_errors import refused

if TYPE_CHECKING:
    from bringup.compile.targets.iree_compiler import IreeOptions

MODULE = "module.vmfb"
PROGRAMS = "programs"


def codec_of(lowering: str) -> StageCodec:
    """In which form a lowering takes its stages."""
    if lowering == "torch":
        from bringup.compile.targets.torch_executor import encode

        return StageCodec(name="torch", encode=encode)
    from bringup.compile.targets.iree_mlir import encode

    return StageCodec(name="mlir", encode=encode)


@contextmanager
def lowered(
    program: EncodedProgram, lowering: str, folder: Path, store: Store, dump_dir: Path | None
) -> Generator[Callable[[], str]]:
    """Begins to make the executable part of a bundle; calling what it gives waits for it, and tells what it is.

    Whatever runs beside this process is ended with the block.
    """
    if lowering == "torch":
        yield lambda: _save(program, folder / PROGRAMS)
        return
    from bringup.compile.targets.iree_compiler import Compilation
    from bringup.compile.targets.iree_key import module_inputs

    text, options = mlir_of(program), options_of(dump_dir)
    inputs = module_inputs(text, options)
    cached = store.get("module", inputs) if inputs and not dump_dir else None
    if cached is not None:
        write_file(folder / MODULE, cached)
        yield lambda: f"{_size(cached)}, from the cache"
        return
    start = time.perf_counter()
    with Compilation(text, options, folder) as compilation:

        def finish() -> str:
            module = _translating_errors(compilation.result)
            if inputs and inputs == module_inputs(text, options):  # no source file changed meanwhile
                store.put("module", inputs, module, what=MODULE, seconds=time.perf_counter() - start)
            write_file(folder / MODULE, module)
            return _size(module)

        yield finish


def compile_mlir(text: str, options: IreeOptions | None = None) -> bytes:
    """IREE's module for this processor. Raises BU401 with the compiler's first error."""
    from bringup.compile.targets.iree_compiler import compile_mlir as compile_with_iree

    return _translating_errors(lambda: compile_with_iree(text, options))


def options_of(dump_dir: Path | None) -> IreeOptions:
    """For this processor; the text of IREE's phases goes to `iree/` in the folder."""
    from bringup.compile.targets.iree_compiler import IreeOptions

    return IreeOptions(dump_dir=dump_dir / "iree" if dump_dir else None)


def mlir_of(program: EncodedProgram) -> str:
    """The whole program's text."""
    from bringup.compile.targets.iree_mlir import decode, module_text

    return module_text(program.interface, {name: decode(code) for name, code in program.code.items()})


def _save(program: EncodedProgram, folder: Path) -> str:
    folder.mkdir()
    for name, code in program.code.items():
        write_file(folder / f"{name}.pt2", code)
    return f"{len(program.code)} exported functions"


def _translating_errors(work: Callable[[], bytes]) -> bytes:
    """What `work` gives, with the compiler's refusal as BU401, the machine's as what it is."""
    from bringup.compile.targets.iree_compiler import LoweringError

    try:
        return work()
    except LoweringError as error:
        raise refused(error) or fail(
            "BU401",
            f"IREE could not lower the program: {error}",
            help="keep the phases with --dump-dir DIR; `--target torch` runs the same program without IREE",
        ) from error


def _size(module: bytes) -> str:
    return f"{MODULE}, {len(module) / 1e3:,.0f} kB"
