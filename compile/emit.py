"""Writes the intermediate forms that precede a bundle to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.cache.store import Store
from bringup.compile.program.export_options import Layout
from bringup.compile.program.physical import buffers_of
from bringup.compile.program.trace_cached import encoded_program
from bringup.compile.targets.registry import registered
from bringup.compile.targets.selection import Selection
from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.graph import Graph
from bringup.progress import Progress
from bringup.system.atomic import write_file

if TYPE_CHECKING:
    from bringup.compile.program.program import Program

PROGRAM, BUNDLE = "program", "bundle"


def check_phase(phase: str, selection: Selection) -> None:
    """Raises BU008 for a phase that the target does not have, BU922 if a package that it requires is not installed."""
    known = [PROGRAM, *selection.target.phases, BUNDLE]
    if phase in known:
        if phase != PROGRAM:
            selection.check_installed()
        return
    others = [each.target.name for each in registered() if phase in each.target.phases]
    hint = f"`--target {others[0]}` has it" if others else did_you_mean(str(phase), known)
    raise fail(
        "BU008",
        f"target `{selection.name}` has no phase `{phase}`",
        help=hint or f"one of {', '.join(known)}",
    )


def emit_phase(
    phase: str, graph: Graph, layout: Layout, selection: Selection,
    out: Path, store: Store, dump_dir: Path | None, progress: Progress,
) -> Path:  # fmt: skip
    """Writes one phase that `check_phase` accepts, other than the bundle, to `out`."""
    with progress.stage("Exporting") as stage:
        if dump_dir:
            dump(graph, layout, selection, dump_dir)
        if phase == PROGRAM:
            write_file(out, _text(exported(graph, layout, selection)).encode())
            stage.done("the program")
            return out
        program = encoded_program(graph, layout, selection.form, store)
        stage.done(f"{len(program.interface.entries)} entry points, {program.summary}")
    with progress.stage("Lowering") as stage:
        write_file(out, selection.target.emit(phase, program, selection.options, dump_dir))
        stage.done(f"to {phase}")
    return out


def dump(graph: Graph, layout: Layout, selection: Selection, folder: Path) -> None:
    """Writes the program as text, from a trace of its own; a target writes its phases to the same folder."""
    program = exported(graph, layout, selection)
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in program.exported.items():
        write_file(folder / f"1-program.{name}.txt", str(code).encode())


def exported(graph: Graph, layout: Layout, selection: Selection) -> Program:
    """The program that a target gets, traced without the cache: with its ops and its buffers."""
    from bringup.compile.program.trace import export_graph

    form = selection.form
    return export_graph(graph, layout, form.ops, buffers_of(graph, form.layout(graph)))


def _text(program: Program) -> str:
    return "\n\n".join(f"# {name}\n{code}" for name, code in program.exported.items())
