"""A program becomes what a target runs, and each phase on the way a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.disk import write_file
from bringup.compile.machine import refused
from bringup.compile.traced import Coded, Form
from bringup.diagnostics import BringupError, fail
from bringup.progress import Progress

if TYPE_CHECKING:
    from bringup.compile.lower.iree import Compilation, IreeOptions, LoweringError
    from bringup.compile.program import Program

PHASES = ("program", "mlir", "vmfb", "bundle")
MODULE = "module.vmfb"
PROGRAMS = "programs"


def form_of(lowering: str) -> Form:
    """In which form a lowering takes its stages."""
    if lowering == "torch":
        from bringup.compile.run.torch import encode

        return Form(name="torch", encode=encode)
    from bringup.compile.lower.mlir import encode

    return Form(name="mlir", encode=encode)


@contextmanager
def lowered(
    program: Coded, lowering: str, folder: Path, store: Store, dump_dir: Path | None
) -> Generator[Callable[[], str]]:
    """Begins to make the executable part of a bundle; calling what it gives waits for it, and tells what it is.

    Whatever runs beside this process is ended with the block.
    """
    if lowering == "torch":
        yield lambda: _save(program, folder / PROGRAMS)
        return
    from bringup.compile.cache.modules import module_inputs
    from bringup.compile.lower.iree import Compilation, IreeOptions

    text, options = _mlir(program), IreeOptions(dump_dir=dump_dir / "iree" if dump_dir else None)
    inputs = module_inputs(text, options)
    kept = None if dump_dir else store.get("module", inputs)
    if kept is not None:
        found = _bytes(folder / MODULE, kept)
        yield lambda: f"{_size(found)}, from the cache"
        return
    start = time.perf_counter()
    with Compilation(text, options, folder) as compilation:

        def finish() -> str:
            module = _compiled(compilation)
            store.put("module", inputs, module, what=MODULE, seconds=time.perf_counter() - start)
            return _size(_bytes(folder / MODULE, module))

        yield finish


def emit_phase(program: Coded, phase: str, out: Path, progress: Progress) -> Path:
    """Writes `mlir` or `vmfb` to `out`. Raises BU008 for what is no phase."""
    if phase not in PHASES:
        raise fail("BU008", f"there is no phase `{phase}`", help=f"one of graph, plan, {', '.join(PHASES)}")
    with progress.stage("Lowering"):
        text = _mlir(program)
        return _bytes(out, text.encode() if phase == "mlir" else compile_mlir(text))


def compile_mlir(text: str, options: IreeOptions | None = None) -> bytes:
    """IREE's module for this processor. Raises BU401 with the compiler's first error."""
    from bringup.compile.lower.iree import LoweringError
    from bringup.compile.lower.iree import compile_mlir as compile_with_iree

    try:
        return compile_with_iree(text, options)
    except LoweringError as error:
        raise _refused(error) from error


def write_program(program: Program, out: Path) -> Path:
    """Every traced function as text."""
    return _bytes(out, "\n\n".join(f"# {name}\n{exported}" for name, exported in program.exported.items()).encode())


def dump(program: Program, folder: Path) -> None:
    """Each phase up to MLIR as a numbered text file."""
    from bringup.compile.lower.mlir import to_mlir

    folder.mkdir(parents=True, exist_ok=True)
    for name, exported in program.exported.items():
        _bytes(folder / f"1-program.{name}.txt", str(exported).encode())
    _bytes(folder / "2-model.mlir", to_mlir(program).encode())


def _mlir(program: Coded) -> str:
    from bringup.compile.lower.mlir import decode, module_text

    return module_text(program.interface, {name: decode(code) for name, code in program.code.items()})


def _save(program: Coded, folder: Path) -> str:
    folder.mkdir()
    for name, code in program.code.items():
        _bytes(folder / f"{name}.pt2", code)
    return f"{len(program.code)} exported functions"


def _compiled(compilation: Compilation) -> bytes:
    from bringup.compile.lower.iree import LoweringError

    try:
        return compilation.result()
    except LoweringError as error:
        raise _refused(error) from error


def _refused(error: LoweringError) -> BringupError:
    return refused(error) or fail(
        "BU401",
        f"IREE could not lower the program: {error}",
        help="keep the phases with --dump-dir DIR; `--target torch` runs the same program without IREE",
    )


def _size(module: Path) -> str:
    return f"{MODULE}, {module.stat().st_size / 1e3:,.0f} kB"


def _bytes(path: Path, data: bytes) -> Path:
    """Writes a file whole or not at all."""
    write_file(path, data)
    return path
