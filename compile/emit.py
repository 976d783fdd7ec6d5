"""The phases before a bundle, as files to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.program.export_options import Layout
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.targets.lowering import codec_of, compile_mlir, mlir_of, options_of
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.graph import Graph
from bringup.progress import Progress
from bringup.system.atomic import write_file

if TYPE_CHECKING:
    from bringup.compile.program.program import Program

PHASES = ("program", "mlir", "vmfb")


def emit_phase(
    phase: str, graph: Graph, layout: Layout, out: Path, store: Store, dump_dir: Path | None, progress: Progress
) -> Path:
    """Writes one phase to `out`. Raises BU008 for what is none."""
    if phase not in PHASES:
        known = [*PHASES, "bundle"]
        listed = f"one of {', '.join(known)}"
        raise fail("BU008", f"there is no phase `{phase}`", help=did_you_mean(str(phase), known) or listed)
    with progress.stage("Exporting") as stage:
        if dump_dir:
            dump(graph, layout, dump_dir)
        if phase == "program":
            write_file(out, _text(_traced(graph, layout)).encode())
            return out
        program = encoded_program(graph, layout, codec_of("iree-cpu"), store)
        stage.done(f"{len(program.interface.entries)} entry points, {program.summary}")
    with progress.stage("Lowering"):
        text = mlir_of(program)
        write_file(out, text.encode() if phase == "mlir" else compile_mlir(text, options_of(dump_dir)))
    return out


def dump(graph: Graph, layout: Layout, folder: Path) -> None:
    """Each phase up to MLIR as a numbered text file, from a trace of its own."""
    from bringup.compile.targets.iree_mlir import to_mlir

    program = _traced(graph, layout)
    folder.mkdir(parents=True, exist_ok=True)
    for name, exported in program.exported.items():
        write_file(folder / f"1-program.{name}.txt", str(exported).encode())
    write_file(folder / "2-model.mlir", to_mlir(program).encode())


def _traced(graph: Graph, layout: Layout) -> Program:
    from bringup.compile.program.trace import export_graph

    return export_graph(graph, layout)


def _text(program: Program) -> str:
    return "\n\n".join(f"# {name}\n{exported}" for name, exported in program.exported.items())
