"""Writes the intermediate forms that precede a bundle to files."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.bundle.folder import refuse
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
from bringup.system.destination import check_new_file, check_new_folder
from bringup.system.new_files import is_of_writing, new_files

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


def check_outputs(out: Path, dump_dir: Path | None = None, *, is_bundle: bool) -> None:
    """Raises BU901, and for a bundle BU012, if an output of a compile cannot be written; before anything is done."""
    if is_bundle:
        refuse(out, force=True)
    else:
        check_new_file(out)
    if dump_dir is not None:
        check_new_folder(dump_dir, "--dump-dir")


def emit_phase(
    phase: str, graph: Graph, layout: Layout, selection: Selection,
    out: Path, store: Store, dump_dir: Path | None, progress: Progress,
) -> Path:  # fmt: skip
    """Writes one phase that `check_phase` accepts, other than the bundle, to `out`, after the dump."""
    if phase == PROGRAM:
        with progress.stage("Exporting") as stage, dumping(graph, layout, selection, dump_dir):
            data = _text(exported(graph, layout, selection)).encode()
            stage.done("the program")
    else:
        with progress.stage("Exporting") as stage:
            program = encoded_program(graph, layout, selection.form, store)
            stage.done(f"{len(program.interface.entries)} entry points, {program.summary}")
        with progress.stage("Lowering") as stage, dumping(graph, layout, selection, dump_dir) as texts:
            data = selection.target.emit(phase, program, selection.options, texts)
            stage.done(f"to {phase}")
    write_file(out, data)
    return out


@contextmanager
def dumping(graph: Graph, layout: Layout, selection: Selection, folder: Path | None) -> Generator[Path | None]:
    """A folder with the program as text, traced without the cache; a target writes its phases there. None without one.

    Its files are in `folder` after the block, also after an error, which they explain. If one of them could not be
    written, none is there.
    """
    if folder is None:
        yield None
        return
    with new_files(folder, keep=lambda error: not is_of_writing(error)) as part:
        for name, code in exported(graph, layout, selection).exported.items():
            write_file(part / f"1-program.{name}.txt", str(code).encode())
        yield part


def exported(graph: Graph, layout: Layout, selection: Selection) -> Program:
    """The program that a target gets, traced without the cache: with its ops and its buffers."""
    from bringup.compile.program.trace import export_graph

    form = selection.form
    return export_graph(graph, layout, form.ops, buffers_of(graph, form.layout(graph)))


def _text(program: Program) -> str:
    return "\n\n".join(f"# {name}\n{code}" for name, code in program.exported.items())
