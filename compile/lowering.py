"""A program becomes what a target runs, and each phase on the way a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.diagnostics import fail
from bringup.progress import Progress

if TYPE_CHECKING:
    from bringup.compile.program import Program

PHASES = ("program", "mlir", "vmfb", "bundle")


def emit_phase(program: Program, phase: str, out: Path, dump_dir: str | Path | None, progress: Progress) -> Path:
    """Writes one phase to `out`."""
    if phase not in PHASES:
        raise fail("BU008", f"there is no phase `{phase}`", help=f"one of graph, plan, {', '.join(PHASES)}")
    if phase == "program":
        text = "\n\n".join(f"# {name}\n{exported}" for name, exported in program.exported.items())
        return _text(out, text)
    from bringup.compile.lower.mlir import to_mlir

    with progress.stage("Lowering"):
        mlir = to_mlir(program)
        return _text(out, mlir) if phase == "mlir" else _bytes(out, compile_mlir(mlir, dump_dir))


def lower(program: Program, lowering: str, folder: Path, dump_dir: str | Path | None, progress: Progress) -> None:
    """The executable part of a bundle."""
    if dump_dir:
        dump(program, Path(dump_dir))
    with progress.stage("Lowering") as stage:
        if lowering == "torch":
            from bringup.compile.run.torch import save_functions

            save_functions(program.exported, folder / "programs")
            stage.done(f"{len(program.exported)} exported functions")
            return
        from bringup.compile.lower.mlir import to_mlir

        module = compile_mlir(to_mlir(program), dump_dir)
        _bytes(folder / "module.vmfb", module)
        stage.done(f"module.vmfb, {len(module) / 1e3:,.0f} kB")


def compile_mlir(mlir: str, dump_dir: str | Path | None) -> bytes:
    """IREE's module for this processor. Raises BU401 with the compiler's first error."""
    from bringup.compile.lower.iree import IreeOptions, LoweringError
    from bringup.compile.lower.iree import compile_mlir as compile_with_iree

    try:
        return compile_with_iree(mlir, IreeOptions(dump_dir=Path(dump_dir, "iree") if dump_dir else None))
    except LoweringError as error:
        raise fail(
            "BU401",
            f"IREE could not lower the program: {error}",
            help="keep the phases with --dump-dir DIR; `--target torch` runs the same program without IREE",
        ) from error


def dump(program: Program, folder: Path) -> None:
    """Each phase as a numbered text file."""
    from bringup.compile.lower.mlir import to_mlir

    folder.mkdir(parents=True, exist_ok=True)
    for name, exported in program.exported.items():
        _text(folder / f"1-program.{name}.txt", str(exported))
    _text(folder / "2-model.mlir", to_mlir(program))


def _text(path: Path, text: str) -> Path:
    return _bytes(path, text.encode())


def _bytes(path: Path, data: bytes) -> Path:
    """Writes a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise fail("BU901", f"cannot write `{path}`: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return path
